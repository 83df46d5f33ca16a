"""A rollout, a group and a batch as text for a terminal. The printing code escapes untrusted text."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from orchestrator.cli.tables import shown
from orchestrator.contracts.marks import ParseStatus
from orchestrator.contracts.no_verdict import NOTE
from orchestrator.contracts.states import RolloutState, SpeedBase

if TYPE_CHECKING:
    from orchestrator.queries.batches import Batch
    from orchestrator.queries.groups import Group
    from orchestrator.queries.rollouts import Attempt, Reward, Rollout
    from orchestrator.queries.step_tree import TreeStep
    from orchestrator.queries.steps import Message, StepText
    from orchestrator.queries.texts import Cut
    from orchestrator.queries.tokens import TokenMap, TokenPage

Rows = tuple[Sequence[str], Sequence[Sequence[object]]]


def joined(*parts: object) -> str:
    """The non-empty parts, joined with dots.

    >>> joined("a", None, "", 0, "b")
    'a · 0 · b'
    """
    return " · ".join(str(part) for part in parts if part not in (None, ""))


def seconds(value: float | None) -> str:
    """Seconds to three digits; empty for None."""
    return "" if value is None else f"{value:.3g} s"


def number(value: float | None) -> str:
    """To four digits; 0 without a sign.

    >>> number(-0.0), number(-0.25)
    ('0', '-0.25')
    """
    return f"{value or 0.0:.4g}"


def clock(at: float | None) -> str:
    """A moment in UTC."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def _reward_parts(r: "Reward") -> Iterator[str]:
    """The origin of the reference time, the contribution of each process signal, and why the group carries no signal."""
    if r.t_base is not None and r.t_agent is not None:
        origins: dict[SpeedBase | None, str] = {
            SpeedBase.REFERENCE: "the task's reference time",
            SpeedBase.SIBLINGS: "the median of its successful siblings",
            SpeedBase.ITSELF: "its own time: no sibling succeeded",
        }
        origin = origins.get(r.t_base_origin, "origin not recorded")
        yield f"speed: {r.t_agent:.4g} s against {r.t_base:.4g} s ({origin})"
    by_signal = {name: value for name, value in (r.process_by_signal or {}).items() if value}
    if by_signal:
        listed = ", ".join(f"{name} {value:+.4g}" for name, value in sorted(by_signal.items()))
        yield f"process: {listed}" + (
            f" (each already x {r.alpha:.3g} by reward.process_cap)" if r.alpha < 1 else ""
        )
    if r.silent is not None:
        spread = "" if r.sd_log_t is None else f"; sd(log T) {r.sd_log_t:.3g}"
        noise = "" if r.speed_noise is None else f", noise {r.speed_noise:.3g}"
        yield f"the group gives no training signal: {r.silent}{spread}{noise}"


def rollout_head(found: "Rollout") -> Iterator[str]:
    """Task, outcome, reward and times of the rollout."""
    position = f"queue position {found.seq}" if found.seq is not None else found.purpose
    yield joined(
        f"rollout {found.rollout_id}",
        f"member {found.member} of group {found.group_id}",
        position,
        found.state,
    )
    yield joined(found.task, found.domain, found.scaffold, found.label, f"seed {found.seed}")
    if found.pruned:
        yield PRUNED
    if found.state is RolloutState.LOST and found.reason:
        yield f"lost: {found.reason}"
    if found.reward is not None:
        r = found.reward
        parts = f"performance {number(r.performance)} + {r.beta:.3g} x speed {number(r.speed)} + {r.alpha:.3g} x process {number(r.process)}"
        advantage = (
            "" if r.advantage is None else f"; advantage {number(r.advantage)}, baseline {number(r.baseline)}"
        )
        yield f"reward {number(r.total)} = {parts}{advantage}"
        yield from _reward_parts(r)
    if found.batch is not None:
        b = found.batch
        made_version = "" if b.version is None else f", made version {b.version}"
        staleness = "" if b.staleness is None else f", staleness {b.staleness}"
        yield f"batch {b.batch_no} ({b.state}{made_version}{staleness}): advantage {number(b.advantage)}"
    for attempt in found.attempts:
        mark = "*" if attempt.attempt == found.shown and len(found.attempts) > 1 else ""
        yield f"attempt {attempt.attempt}{mark}: {_attempt(attempt)}"
    yield from _systems(found)
    for verdict in found.verdicts:
        passed = sum(check.passed for check in verdict.checks)
        yield joined(
            f"verdict {verdict.revision}: {number(verdict.reward)}",
            f"{passed} of {len(verdict.checks)} tests passed" if verdict.checks else None,
            f"exit {verdict.exit_code}" if verdict.exit_code is not None else None,
            seconds(verdict.verify_s),
        )
        if verdict.components:
            yield f"  components: {', '.join(f'{name} {number(value)}' for name, value in verdict.components.items())}"
        for line in "" if verdict.log is None else verdict.log.text.splitlines():
            if line.startswith(NOTE):
                yield f"  {line}"
        for check in verdict.checks:
            if not check.passed:
                yield f"  failed: {check.name}{': ' + check.message.text if check.message else ''}"


PRUNED = "pruned: the steps, messages, tool calls and files of this run were dropped"


def _systems(found: "Rollout") -> Iterator[str]:
    """The system that the sandboxes ran on, once where all attempts agree."""
    known = {attempt.attempt: attempt.system for attempt in found.attempts if attempt.system is not None}
    if len(set(known.values())) == 1:
        yield f"sandbox on {next(iter(known.values()))}"
        return
    for number, system in known.items():
        yield f"sandbox of attempt {number} on {system}"
    if known:
        yield "  the attempts ran on different systems: an image was built again with other content, or another runner took over"


def _attempt(attempt: "Attempt") -> str:
    ended = attempt.failure_class or "under way"
    reason = f"({attempt.reason})" if attempt.reason else ""
    queued = f"waited {seconds(attempt.queued_s)}" if attempt.queued_s is not None else None
    agent = f"agent {seconds(attempt.agent_s)}" if attempt.agent_s is not None else None
    return joined(
        f"{ended} {reason}".strip(), f"began {clock(attempt.started)}", queued, agent, attempt.runner
    )


def rollout_steps(found: "Rollout") -> Rows:
    """The steps as a table."""
    columns = (
        "step",
        "parent",
        "kind",
        "agent",
        "version",
        "state",
        "action",
        "finish",
        "gen s",
        "gap s",
        "calls",
        "advantage",
        "marks",
    )
    return columns, [
        (
            step.idx, step.parent, step.branch_reason or step.kind, step.agent, versions(step), step.state_len, step.action,
            step.finish if step.parse is ParseStatus.OK else step.parse, step.t_gen, step.t_gap, ", ".join(step.tools),
            step.rewards.advantage if step.rewards else None, ", ".join(step.marks),
        )
        for step in found.steps
    ]  # fmt: skip


def versions(step: "TreeStep") -> str:
    """`3`, or `3..5` if several versions sampled the action."""
    seen = [span.version for span in step.spans]
    return "" if not seen else str(seen[0]) if min(seen) == max(seen) else f"{min(seen)}..{max(seen)}"


def conversation(steps: Sequence["StepText"]) -> Iterator[str]:
    """The conversation, step by step."""
    for step in steps:
        yield f"--- step {step.idx} " + "-" * 60
        if step.tools:
            yield f"[tools] {', '.join(step.tools)}"
        if step.known:
            yield f"[{step.known} messages as in step {step.near}]"
        for message in step.appended[step.known :]:
            yield from _message(message)
        if step.text_left_out:
            yield "[its messages were too large to be recorded with the token ids]"
        if step.reasoning is not None:
            yield f"[reasoning] {_cut(step.reasoning)}"
        if step.content.length:
            yield f"[answer] {_cut(step.content)}"
        for call in step.calls:
            yield f"[call] {call.name} {_cut(call.arguments)}"


def _message(message: "Message") -> Iterator[str]:
    if message.reasoning is not None:
        yield f"[{message.role}, reasoning] {_cut(message.reasoning)}"
    if message.content.length or not message.calls:
        yield f"[{message.role}] {_cut(message.content)}"
    for call in message.calls:
        yield f"[{message.role}, call] {call.name} {_cut(call.arguments)}"


def _cut(text: "Cut") -> str:
    return (
        text.text
        if text.whole
        else f"{text.text} [… {text.length - len(text.text):,} more characters: --full]"
    )


def rollout_rest(found: "Rollout") -> Iterator[str]:
    """Additions of `--full`: logs and files."""
    for attempt in found.attempts:
        if attempt.attempt == found.shown and attempt.log is not None:
            yield f"--- log of attempt {attempt.attempt} " + "-" * 50
            yield _cut(attempt.log)
    for verdict in found.verdicts:
        if verdict.log is not None:
            yield f"--- log of verdict {verdict.revision} " + "-" * 50
            yield _cut(verdict.log)
    for file in found.files:
        yield f"--- {file.path} ({file.kind}, {file.bytes} bytes) " + "-" * 40
        if file.text is not None:
            yield _cut(file.text)


def token_rows(where: "TokenMap", page: "TokenPage") -> Rows:
    """One row per token: position, who wrote it, id, text, behavior logprob, version."""
    rows: list[Sequence[object]] = []
    segments = iter(where.segments)
    segment = next(segments, None)
    for n, id in enumerate(page.ids):
        pos = page.start + n
        while segment is not None and pos >= segment.end:
            segment = next(segments, None)
        text = "" if page.texts is None else repr(page.texts[n])[1:-1]
        part, step, version = (segment.part, segment.step, segment.version) if segment else ("", None, None)
        rows.append((pos, part, step, id, text, page.logprobs[n], version))
    return ("pos", "part", "step", "id", "text", "logprob", "version"), rows


def group_head(found: "Group") -> Iterator[str]:
    """Task, state and batch of the group."""
    position = f"queue position {found.seq}" if found.seq is not None else found.purpose
    state = f"{found.state} ({found.reason})" if found.reason else found.state
    yield joined(
        f"group {found.group_id}",
        position,
        state,
        f"batch {found.batch_no} ({found.batch_state})" if found.batch_no is not None else None,
    )
    yield joined(
        found.task,
        found.domain,
        found.scaffold,
        found.difficulty,
        found.label,
        f"submission {found.submission}",
    )
    moments = (
        ("accepted", found.created),
        ("dispatched", found.dispatched),
        ("ready", found.ready),
        ("ended", found.ended),
    )
    before: float | None = None
    parts = []
    for name, at in moments:
        if at is not None:
            parts.append(f"{name} {clock(at)}" if before is None else f"{name} +{seconds(at - before)}")
            before = at
    yield joined(*parts)
    if found.pruned:
        yield PRUNED
    if found.instruction is not None:
        yield f"[instruction] {_cut(found.instruction)}"


def group_members(found: "Group") -> Rows:
    """The members side by side."""
    columns = (
        "rollout",
        "member",
        "state",
        "failure",
        "steps",
        "tokens",
        "versions",
        "performance",
        "reward",
        "advantage",
        "tests",
        "agent s",
        "files",
    )
    return columns, [
        (
            m.rollout_id, m.member, m.state, m.failure_class, m.steps, m.action_tokens,
            None if m.v_lo is None else str(m.v_lo) if m.v_lo == m.v_hi else f"{m.v_lo}..{m.v_hi}", m.performance, m.total, m.advantage,
            None if m.tests is None else f"{m.tests_passed}/{m.tests}", m.agent_s, ", ".join(file.path for file in m.files),
        )
        for m in found.members
    ]  # fmt: skip


def group_answers(found: "Group") -> Iterator[str]:
    """Additions of `--full`: each member's answer and reason."""
    for member in found.members:
        if member.answer is not None or member.reason:
            yield f"--- rollout {member.rollout_id} " + "-" * 50
        if member.reason:
            yield f"[reason] {member.reason}"
        if member.answer is not None:
            yield _cut(member.answer)


def batch_head(found: "Batch") -> Iterator[str]:
    """State, times and published version of the batch, and why batches of its number were voided."""
    versions_text = (
        f"version {found.trainer_version} → {found.version}" if found.version is not None else None
    )
    yield joined(
        f"batch {found.batch_no}", found.state, f"{len(found.groups)} of {found.size} groups", versions_text
    )
    moments = (("opened", found.opened), ("closed", found.closed), ("committed", found.committed))
    yield joined(*(f"{name} {clock(at)}" for name, at in moments if at is not None))
    for voided in found.voided:
        reason = voided.reason if voided.detail is None else f"{voided.reason}: {voided.detail}"
        yield joined(
            f"voided {clock(voided.at)}", f"groups {', '.join(map(str, voided.groups)) or 'none'}", reason
        )


def batch_groups(found: "Batch") -> Rows:
    """Its groups, in the order of their taking."""
    columns = (
        "pos",
        "group",
        "seq",
        "domain",
        "task",
        "scaffold",
        "rollouts",
        "performance",
        "reward",
        "spread",
        "taken",
    )
    return columns, [
        (
            g.pos,
            g.group_id,
            g.seq,
            g.domain,
            g.task,
            g.scaffold,
            f"{g.rollouts} of {g.size}",
            g.performance,
            g.reward,
            g.advantage_spread,
            clock(g.taken),
        )
        for g in found.groups
    ]


METRICS = (
    "loss", "gradient_norm", "entropy", "kl_k3", "clip_fraction", "ess", "reward", "performance", "action_tokens", "merge_ratio", "wall_s",
)  # fmt: skip


def batch_steps(found: "Batch") -> Rows:
    """Its train steps with the most important metrics."""
    return ("train step", "part", *METRICS), [
        (step.train_step, step.part, *(step.metrics.get(name) for name in METRICS))
        for step in found.train_steps
    ]


def batch_metrics(found: "Batch") -> Rows:
    """Additions of `--full`: every metric of every train step, one line each."""
    names = sorted({name for step in found.train_steps for name in step.metrics})
    rows = [(name, *(shown(step.metrics.get(name)) for step in found.train_steps)) for name in names]
    return ("metric", *(f"train step {step.train_step}" for step in found.train_steps)), rows
