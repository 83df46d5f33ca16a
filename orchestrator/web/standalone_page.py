"""One trajectory as a single file: it needs no server, no network and no script, and opens from disk as from the dashboard.

Text of models, tasks and tools is escaped, and every character that could colour, move, reorder or hide it is spelled out
(`queries.texts.visible`). The page's own policy (CSP) allows its style sheet by digest and nothing else: no script, no request, no form, no frame.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.marks import MAIN_AGENT, Finish, MarkReason
from orchestrator.contracts.states import StepKind
from orchestrator.queries import rollouts, steps, tokens
from orchestrator.queries.files import File, FileKind
from orchestrator.queries.rollouts import Rollout
from orchestrator.queries.step_tree import TreeStep
from orchestrator.queries.steps import Message, ShownCall, StepText
from orchestrator.queries.texts import Cut, visible
from orchestrator.queries.timeline import Verdict
from orchestrator.queries.token_text import run_detokenizer
from orchestrator.queries.tokens import ActionTokens
from orchestrator.queries.waterfall import BarKind, WaterfallBar

STYLE = (Path(__file__).parent / "standalone_page.css").read_text(encoding="utf-8")
MAX_TEXT = 200_000  # characters of one text
MAX_TOKENS = 100_000  # sampled tokens that are drawn one by one: some 7 MB
LEVELS = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.005)  # probabilities: below the last one, the strongest heat
ROLES = {"tool": "observation"}


async def standalone_page(
    connection: AsyncConnection, run_id: int, run: str, rollout_id: int, attempt: int | None = None
) -> str:
    """The HTML of one rollout, with the steps of `attempt` (default: the attempt that counts). Raises NotFoundError."""
    shown = await rollouts.rollout(connection, run_id, rollout_id, attempt)
    texts: list[StepText] = []
    following: int | None = 0
    while following is not None:
        page = await steps.steps(
            connection, run_id, rollout_id, shown.shown, first=following, n=100, limit=MAX_TEXT
        )
        texts += page.steps
        following = page.next
    token_steps: list[int] = []
    left = MAX_TOKENS
    for step in shown.steps:
        left -= step.action
        if left < 0:
            break
        token_steps.append(step.idx)
    spelled = await run_detokenizer(connection, run_id)
    sampled = await tokens.action_tokens(
        connection, run_id, rollout_id, shown.shown, token_steps, spelled.detokenizer
    )
    return "".join(
        _page(run, shown, {step_texts.idx: step_texts for step_texts in texts}, sampled, spelled.note)
    )


def policy() -> str:
    """The page's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _escaped(text: object) -> str:
    """Untrusted text, for the inside of an element or of a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value or 0.0:.4g}".replace("-", "−")


def _page(
    run: str, rollout: Rollout, texts: dict[int, StepText], sampled: dict[int, ActionTokens], note: str | None
) -> Iterator[str]:
    title = f"Rollout {rollout.rollout_id} of {run}"
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(), quote=True)}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_escaped(title)}</title><style>{STYLE}</style></head><body>\n<header><h1>{_escaped(title)}</h1>"
        f"<p>{_escaped(rollout.task)} · {_escaped(rollout.domain)} · {_escaped(rollout.scaffold)}</p></header>\n"
    )
    yield from _facts(rollout)
    if rollout.instruction is not None:
        yield f'<section><h2>Task</h2><div class="text">{_text(rollout.instruction)}</div></section>\n'
    yield from _outline(rollout)
    yield '<section class="steps"><h2>Steps</h2>\n'
    if note is not None and any(action_tokens.texts for action_tokens in sampled.values()):
        yield f"<p>{_escaped(note)}</p>\n"
    for step in rollout.steps:
        yield from _step(step, texts.get(step.idx), sampled.get(step.idx))
    if not rollout.steps:
        yield (
            "<p>The steps of this run were pruned.</p>" if rollout.pruned else "<p>No step was recorded.</p>"
        )
    yield "</section>\n"
    yield from _timings(rollout)
    for verdict in rollout.verdicts:
        yield from _verdict(verdict)
    yield from _files(rollout.files)
    yield from _attempts(rollout)
    yield "</body></html>\n"


def _facts(rollout: Rollout) -> Iterator[str]:
    reward = rollout.reward
    facts = [
        ("state", rollout.state.replace("_", " ")),
        ("ended", (rollout.failure_class or "not yet").replace("_", " ")),
        ("group", f"{rollout.group_id}, member {rollout.member}"),
        ("attempt", f"{rollout.shown} of {max(1, len(rollout.attempts))}"),
        ("steps", str(len(rollout.steps))),
        ("tokens sampled", str(sum(step.action for step in rollout.steps))),
    ]
    if reward is not None:
        speed, process = reward.beta * reward.speed, reward.alpha * reward.process
        parts = (
            f"{_number(reward.performance)} performance + {_number(speed)} speed + {_number(process)} process"
        )
        facts += [("reward", f"{_number(reward.total)} = {parts}"), ("advantage", _number(reward.advantage))]
    if rollout.batch is not None:
        stale = rollout.batch.staleness
        behind = "" if stale is None else f", {stale} version{'' if stale == 1 else 's'} behind"
        facts.append(("batch", f"{rollout.batch.batch_no} ({rollout.batch.state}{behind})"))
    entries = "".join(f"<div><dt>{name}</dt><dd>{_escaped(value)}</dd></div>" for name, value in facts)
    yield f"<dl>{entries}</dl>\n"


def _outline(rollout: Rollout) -> Iterator[str]:
    """The step tree: one line per step; a step that does not continue its predecessor names the step that it branches from."""
    yield "<nav><h2>Outline</h2><ol>"
    for step in rollout.steps:
        origin = "" if step.parent is None else f" from step {step.parent}"
        kind = (
            ""
            if step.kind is StepKind.CONTINUES
            else f" <em>{step.kind}{origin}{': ' + _escaped(step.branch_reason).replace('_', ' ') if step.branch_reason else ''}</em>"
        )
        agent = "" if step.agent == MAIN_AGENT else f" <b>{_escaped(step.agent)}</b>"
        label = _escaped(", ".join(step.tools)) or (
            "answer" if step.finish is Finish.STOP else _escaped(step.finish)
        )
        yield f'<li value="{step.idx}"><a href="#step-{step.idx}">{label}</a>{agent}{kind}</li>'
    yield "</ol></nav>\n"


def _step(step: TreeStep, texts: StepText | None, sampled: ActionTokens | None) -> Iterator[str]:
    versions = sorted({span.version for span in step.spans})
    version_range = (
        "" if not versions else f" · v{versions[0]}" + (f"–v{versions[-1]}" if len(versions) > 1 else "")
    )
    input_tokens = (
        f"{step.state_len} tokens of prompt" if step.parent is None else f"{step.added} tokens added"
    )
    advantage = "" if step.rewards is None else f" · advantage {_number(step.rewards.advantage)}"
    marks = "".join(f' <span class="mark">{_mark(mark)}</span>' for mark in step.marks)
    yield (
        f'<article id="step-{step.idx}"><h3>Step {step.idx} <small>{_escaped(step.agent)} · {input_tokens}, {step.action} sampled'
        f"{version_range}{advantage} · {_number(step.t_gen)} s</small>{marks}</h3>\n"
    )
    if texts is not None:
        if texts.text_left_out:
            yield "<p>The request of this step was too large to be kept as text.</p>"
        if texts.known:
            yield f"<details><summary>{texts.known} earlier messages, as in the conversation of step {texts.near}</summary>"
            yield from map(_message, texts.appended[: texts.known])
            yield "</details>"
        yield from map(_message, texts.appended[texts.known :])
        yield _turn("policy", texts.reasoning, texts.content, texts.calls)
    for run in step.tool_runs:
        duration = "" if run.start is None or run.end is None else f" ran {_number(run.end - run.start)} s"
        yield f"<p class='runs'>{_escaped(run.name)}{duration}, exit {run.exit_code if run.exit_code is not None else '–'}</p>"
    if sampled is not None and sampled.texts:
        yield (
            "<details><summary>Sampled tokens, by how likely each was</summary>"
            + _tokens(sampled)
            + "</details>"
        )
    elif sampled is None:
        yield "<p class='runs'>Its tokens are left out: the file has room for those of earlier steps.</p>"
    yield "</article>\n"


def _tokens(sampled: ActionTokens) -> str:
    elements = []
    for text, logprob, version in zip(sampled.texts, sampled.logprobs, sampled.versions, strict=False):
        likely = math.exp(min(0.0, logprob))
        level = sum(likely < bound for bound in LEVELS)
        shown = _escaped(text).replace("\n", "↵\n") or "·"
        elements.append(f'<i class="h{level}" title="{logprob:.4f}, v{version}">{shown}</i>')
    return f'<pre class="tokens">{"".join(elements)}</pre>'


def _message(message: Message) -> str:
    return _turn(ROLES.get(message.role, message.role), message.reasoning, message.content, message.calls)


def _turn(role: str, reasoning: Cut | None, content: Cut, calls: Iterable[ShownCall]) -> str:
    parts = [] if reasoning is None else [f'<div class="reasoning">{_text(reasoning)}</div>']
    if content.length:
        parts.append(f'<div class="text">{_text(content)}</div>')
    parts += [_call(call) for call in calls]
    name = {"policy": "policy", "observation": "observation"}.get(role, "other")
    return f'<div class="turn {name}"><div class="role">{_escaped(role)}</div><div>{"".join(parts) or "<p>nothing</p>"}</div></div>\n'


def _call(call: ShownCall) -> str:
    shown = call.arguments
    if shown.whole:
        try:
            arguments = "\n".join(
                f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
                for name, value in dict(json.loads(shown.text)).items()
            )
            shown = Cut(arguments, len(arguments))
        except (ValueError, TypeError):
            pass
    return f'<div class="call"><b>{_escaped(call.name)}</b>{_text(shown)}</div>'


def _text(cut: Cut) -> str:
    more = "" if cut.whole else f"<p>… {cut.length} characters in all.</p>"
    return f"<pre>{_escaped(cut.text)}</pre>{more}"


def _timings(rollout: Rollout) -> Iterator[str]:
    """The waterfall as a picture: attributes only, since the page's policy allows no style in elements."""
    bars = [bar for bar in rollout.bars if bar.end > 0 and bar.kind not in (BarKind.WAITING, BarKind.FIRST)]
    if not bars:
        return
    end = max(bar.end for bar in bars) or 1.0
    rows: dict[str, list[WaterfallBar]] = {}
    for bar in bars:
        rows.setdefault(bar.kind if bar.step is None else f"step {bar.step}", []).append(bar)
    yield f'<section><h2>Timings</h2><p>{_number(end)} s from the attempt\'s start.</p><div class="wide">'
    yield f'<svg viewBox="0 0 1000 {18 * len(rows)}" width="1000" height="{18 * len(rows)}" role="img" aria-label="Timings">'
    for n, (name, row_bars) in enumerate(rows.items()):
        yield f'<text x="0" y="{18 * n + 13}">{_escaped(name.replace("_", " "))}</text>'
        for bar in row_bars:
            x, width = 130 + 860 * max(0.0, bar.start) / end, 860 * (bar.end - max(0.0, bar.start)) / end
            title = f"{bar.name or bar.kind}: {_number(bar.end - bar.start)} s {bar.detail}"
            position = f'x="{x:.2f}" y="{18 * n + 3}" width="{max(1.0, width):.2f}" height="12"'
            yield f'<rect class="{bar.kind}" {position}><title>{_escaped(title)}</title></rect>'
    yield "</svg></div></section>\n"


def _verdict(verdict: Verdict) -> Iterator[str]:
    code = "–" if verdict.exit_code is None else verdict.exit_code
    summary = f"reward {_number(verdict.reward)}, exit {code}, took {_number(verdict.verify_s)} s"
    yield f"<section><h2>Verdict</h2><p>{summary}</p><ul>"
    for check in verdict.checks:
        message = "" if check.message is None else _text(check.message)
        yield f"<li>{'passed' if check.passed else '<b>failed</b>'}: {_escaped(check.name)}{message}</li>"
    yield "</ul>"
    if verdict.log is not None:
        yield f"<details><summary>Log of the verifier</summary>{_text(verdict.log)}</details>"
    yield "</section>\n"


def _files(files: Iterable[File]) -> Iterator[str]:
    for file in files:
        size = f", {file.bytes} bytes" if file.kind in (FileKind.TEXT, FileKind.BINARY, FileKind.LINK) else ""
        shown = "" if file.text is None else _text(file.text)
        yield f"<section><h2>{_escaped(file.path)}</h2><p>{file.kind}{size}</p>{shown}</section>\n"


def _attempts(rollout: Rollout) -> Iterator[str]:
    yield "<section><h2>Attempts</h2><ul>"
    for attempt in rollout.attempts:
        ended = (attempt.failure_class or "running").replace("_", " ")
        yield f"<li>{attempt.attempt}: {ended}{'' if not attempt.reason else ': ' + _escaped(attempt.reason)}"
        if attempt.log is not None and attempt.attempt == rollout.shown:
            yield f"<details><summary>Log of the runner</summary>{_text(attempt.log)}</details>"
        yield "</li>"
    yield "</ul></section>\n"


def _mark(reason: str) -> str:
    """A mark of a step as a note, escaped."""
    if reason == MarkReason.CUT_OFF:
        return "cut off: trains only with a negative advantage"
    return f"does not train: {_escaped(reason)}"
