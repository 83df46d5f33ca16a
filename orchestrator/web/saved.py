"""One trajectory as a file of its own: it needs no server, no network and no script, and opens from disk as it would from here.

What models, tasks and tools wrote is escaped, and whatever could colour, move, reorder or hide it is spelled out (`look.texts.visible`). The
page's own policy (CSP) allows its style sheet by digest and nothing else: no script, no request, no form, no frame.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.look import rollouts, steps, tokens
from orchestrator.look.files import File
from orchestrator.look.past import Verdict
from orchestrator.look.pieces import spelling
from orchestrator.look.rollouts import Rollout
from orchestrator.look.step_tree import Step
from orchestrator.look.steps import Call, Message, Spoken
from orchestrator.look.texts import Cut, visible
from orchestrator.look.tokens import ActionTokens
from orchestrator.look.waterfall import Bar

STYLE = (Path(__file__).parent / "saved.css").read_text(encoding="utf-8")
LONGEST_TEXT = 200_000  # characters of one text
MOST_TOKENS = 100_000  # sampled tokens that are drawn one by one: some 7 MB
LEVELS = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.005)  # probabilities: below the last one, the strongest heat
ROLES = {"tool": "observation"}


async def saved(
    connection: AsyncConnection, run_id: int, run: str, rollout_id: int, attempt: int | None = None
) -> str:
    """The HTML of one rollout, with the steps of `attempt` (by default the one that counts). Raises NotThereError."""
    shown = await rollouts.rollout(connection, run_id, rollout_id, attempt)
    spoken: list[Spoken] = []
    following: int | None = 0
    while following is not None:
        page = await steps.steps(
            connection, run_id, rollout_id, shown.shown, first=following, n=100, limit=LONGEST_TEXT
        )
        spoken += page.steps
        following = page.next
    drawn: list[int] = []
    left = MOST_TOKENS
    for step in shown.steps:
        left -= step.action
        if left < 0:
            break
        drawn.append(step.idx)
    spelled = await spelling(connection, run_id)
    sampled = await tokens.action_tokens(connection, run_id, rollout_id, shown.shown, drawn, spelled.pieces)
    return "".join(_page(run, shown, {one.idx: one for one in spoken}, sampled, spelled.note))


def policy() -> str:
    """The page's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _said(text: object) -> str:
    """Somebody else's text, for the inside of an element or of a quoted attribute."""
    return html.escape(visible(str(text)), quote=True)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.4g}".replace("-", "−")


def _page(
    run: str, rollout: Rollout, spoken: dict[int, Spoken], sampled: dict[int, ActionTokens], note: str | None
) -> Iterator[str]:
    title = f"Rollout {rollout.rollout_id} of {run}"
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(), quote=True)}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{_said(title)}</title><style>{STYLE}</style></head><body>\n<header><h1>{_said(title)}</h1>"
        f"<p>{_said(rollout.task)} · {_said(rollout.domain)} · {_said(rollout.scaffold)}</p></header>\n"
    )
    yield from _facts(rollout)
    if rollout.instruction is not None:
        yield f'<section><h2>Task</h2><div class="text">{_text(rollout.instruction)}</div></section>\n'
    yield from _outline(rollout)
    yield '<section class="steps"><h2>Steps</h2>\n'
    if note is not None and any(one.texts for one in sampled.values()):
        yield f"<p>{_said(note)}</p>\n"
    for step in rollout.steps:
        yield from _step(step, spoken.get(step.idx), sampled.get(step.idx))
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
    told = "".join(f"<div><dt>{name}</dt><dd>{_said(value)}</dd></div>" for name, value in facts)
    yield f"<dl>{told}</dl>\n"


def _outline(rollout: Rollout) -> Iterator[str]:
    """The step tree: each chain of continuations one line; others say where they leave it."""
    yield "<nav><h2>Outline</h2><ol>"
    for step in rollout.steps:
        above = "" if step.parent is None else f" from step {step.parent}"
        kind = (
            ""
            if step.kind == "continues"
            else f" <em>{step.kind}{above}{': ' + _said(step.branch_reason).replace('_', ' ') if step.branch_reason else ''}</em>"
        )
        agent = "" if step.agent == "main" else f" <b>{_said(step.agent)}</b>"
        what = _said(", ".join(step.tools)) or ("answer" if step.finish == "stop" else _said(step.finish))
        yield f'<li value="{step.idx}"><a href="#step-{step.idx}">{what}</a>{agent}{kind}</li>'
    yield "</ol></nav>\n"


def _step(step: Step, spoken: Spoken | None, sampled: ActionTokens | None) -> Iterator[str]:
    versions = sorted({span.version for span in step.spans})
    made = "" if not versions else f" · v{versions[0]}" + (f"–v{versions[-1]}" if len(versions) > 1 else "")
    asked = f"{step.state_len} tokens of prompt" if step.parent is None else f"{step.added} tokens added"
    worth = "" if step.rewards is None else f" · advantage {_number(step.rewards.advantage)}"
    marks = "".join(f' <span class="mark">does not train: {_said(mark)}</span>' for mark in step.marks)
    yield (
        f'<article id="step-{step.idx}"><h3>Step {step.idx} <small>{_said(step.agent)} · {asked}, {step.action} sampled'
        f"{made}{worth} · {_number(step.t_gen)} s</small>{marks}</h3>\n"
    )
    if spoken is not None:
        if spoken.text_left_out:
            yield "<p>What this step was asked was too large to be kept as text.</p>"
        if spoken.known:
            yield f"<details><summary>{spoken.known} earlier messages, as in the conversation of step {spoken.near}</summary>"
            yield from map(_message, spoken.appended[: spoken.known])
            yield "</details>"
        yield from map(_message, spoken.appended[spoken.known :])
        yield _turn("policy", spoken.reasoning, spoken.content, spoken.calls)
    for run in step.tool_runs:
        took = "" if run.start is None or run.end is None else f" ran {_number(run.end - run.start)} s"
        yield f"<p class='runs'>{_said(run.name)}{took}, exit {run.exit_code if run.exit_code is not None else '–'}</p>"
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
    made = []
    for text, logprob, version in zip(sampled.texts, sampled.logprobs, sampled.versions, strict=False):
        likely = math.exp(min(0.0, logprob))
        level = sum(likely < bound for bound in LEVELS)
        shown = _said(text).replace("\n", "↵\n") or "·"
        made.append(f'<i class="h{level}" title="{logprob:.4f}, v{version}">{shown}</i>')
    return f'<pre class="tokens">{"".join(made)}</pre>'


def _message(message: Message) -> str:
    return _turn(ROLES.get(message.role, message.role), message.reasoning, message.content, message.calls)


def _turn(role: str, reasoning: Cut | None, content: Cut, calls: Iterable[Call]) -> str:
    parts = [] if reasoning is None else [f'<div class="reasoning">{_text(reasoning)}</div>']
    if content.length:
        parts.append(f'<div class="text">{_text(content)}</div>')
    parts += [_call(call) for call in calls]
    name = {"policy": "policy", "observation": "observation"}.get(role, "other")
    return f'<div class="turn {name}"><div class="role">{_said(role)}</div><div>{"".join(parts) or "<p>nothing</p>"}</div></div>\n'


def _call(call: Call) -> str:
    shown = call.arguments
    if shown.whole:
        try:
            told = "\n".join(
                f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
                for name, value in dict(json.loads(shown.text)).items()
            )
            shown = Cut(told, len(told))
        except (ValueError, TypeError):
            pass
    return f'<div class="call"><b>{_said(call.name)}</b>{_text(shown)}</div>'


def _text(cut: Cut) -> str:
    more = "" if cut.whole else f"<p>… {cut.length} characters in all.</p>"
    return f"<pre>{_said(cut.text)}</pre>{more}"


def _timings(rollout: Rollout) -> Iterator[str]:
    """The waterfall as a picture: attributes only, since the page's policy allows no style in elements."""
    bars = [bar for bar in rollout.bars if bar.end > 0 and bar.kind not in ("waiting", "first")]
    if not bars:
        return
    end = max(bar.end for bar in bars) or 1.0
    rows: dict[str, list[Bar]] = {}
    for bar in bars:
        rows.setdefault(bar.kind if bar.step is None else f"step {bar.step}", []).append(bar)
    yield f'<section><h2>Timings</h2><p>{_number(end)} s from the attempt\'s start.</p><div class="wide">'
    yield f'<svg viewBox="0 0 1000 {18 * len(rows)}" width="1000" height="{18 * len(rows)}" role="img" aria-label="Timings">'
    for n, (name, own) in enumerate(rows.items()):
        yield f'<text x="0" y="{18 * n + 13}">{_said(name.replace("_", " "))}</text>'
        for bar in own:
            x, long = 130 + 860 * max(0.0, bar.start) / end, 860 * (bar.end - max(0.0, bar.start)) / end
            told = f"{bar.name or bar.kind}: {_number(bar.end - bar.start)} s {bar.detail}"
            place = f'x="{x:.2f}" y="{18 * n + 3}" width="{max(1.0, long):.2f}" height="12"'
            yield f'<rect class="{bar.kind}" {place}><title>{_said(told)}</title></rect>'
    yield "</svg></div></section>\n"


def _verdict(verdict: Verdict) -> Iterator[str]:
    code = "–" if verdict.exit_code is None else verdict.exit_code
    told = f"reward {_number(verdict.reward)}, exit {code}, took {_number(verdict.verify_s)} s"
    yield f"<section><h2>Verdict</h2><p>{told}</p><ul>"
    for check in verdict.checks:
        said = "" if check.message is None else _text(check.message)
        yield f"<li>{'passed' if check.passed else '<b>failed</b>'}: {_said(check.name)}{said}</li>"
    yield "</ul>"
    if verdict.log is not None:
        yield f"<details><summary>Log of the verifier</summary>{_text(verdict.log)}</details>"
    yield "</section>\n"


def _files(files: Iterable[File]) -> Iterator[str]:
    for file in files:
        said = f", {file.bytes} bytes" if file.kind != "deleted" else ""
        shown = "" if file.text is None else _text(file.text)
        yield f"<section><h2>{_said(file.path)}</h2><p>{file.kind}{said}</p>{shown}</section>\n"


def _attempts(rollout: Rollout) -> Iterator[str]:
    yield "<section><h2>Attempts</h2><ul>"
    for attempt in rollout.attempts:
        ended = (attempt.failure_class or "running").replace("_", " ")
        yield f"<li>{attempt.attempt}: {ended}{'' if not attempt.reason else ': ' + _said(attempt.reason)}"
        if attempt.log is not None and attempt.attempt == rollout.shown:
            yield f"<details><summary>Log of the runner</summary>{_text(attempt.log)}</details>"
        yield "</li>"
    yield "</ul></section>\n"
