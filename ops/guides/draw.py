"""Draws the pictures of concepts.md: `.venv/bin/python ops/guides/draw.py` writes them next to it. A test compares the committed files.

loop.svg     the components and the data that they exchange, numbered as the sections of the guide
window.svg   the queue at three moments; the production code decides which groups may be taken
steps.svg    the stored steps of one rollout: the tokens that each keeps, adds and samples
prefix.svg   the samples of a batch, and the prefix tree that the trainer forwards instead of them

Each picture has its own background and follows the reader's dark scheme.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from orchestrator.contracts.states import GroupState
from orchestrator.scheduling.window import QueueRow, head, takeable

HERE = Path(__file__).resolve().parent

STYLE = """
 svg { --back: #ffffff; --ink: #1f2328; --dim: #59636e; --line: #8c959f; --box: #f6f8fa; --green: #1a7f37; --given: #6e7781;
       --run: #0969da; --warn: #bc4c00; --on: #ffffff; --other: #8250df }
 @media (prefers-color-scheme: dark) { svg { --back: #0d1117; --ink: #e6edf3; --dim: #9198a1; --line: #6e7681; --box: #161b22;
       --green: #3fb950; --given: #8b949e; --run: #58a6ff; --warn: #f0883e; --on: #0d1117; --other: #bc8cff } }
 text { fill: var(--ink); font: 13px system-ui, sans-serif }
 .small { font-size: 11.5px } .dim { fill: var(--dim) } .bold { font-weight: 600 } .mid { text-anchor: middle } .on { fill: var(--on) }
 .back { fill: var(--back) } .box { fill: var(--box); stroke: var(--line); stroke-width: 1.2 }
 .pool { fill: var(--box); stroke: var(--run); stroke-width: 2 }
 .green { fill: var(--green) } .given { fill: var(--given) } .run { fill: var(--run) } .other { fill: var(--other) }
 .gone { fill: var(--box); stroke: var(--line) } .later { fill: none; stroke: var(--line); stroke-dasharray: 3 3 }
 .kept { fill: none; stroke: var(--line); stroke-dasharray: 4 3 } .window { fill: none; stroke: var(--warn); stroke-width: 2.5 }
 .edge { fill: none; stroke: var(--line); stroke-width: 1.5 } .tip { fill: var(--line) }
 .dot { fill: var(--warn) }
"""


class Picture:
    """SVG, element by element; text is escaped here."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
        ]

    def rect(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 3) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'
        )

    def text(self, x: float, y: float, content: str, kind: str = "") -> None:
        self._parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(content)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, name: str, *lines: str, kind: str = "box"
    ) -> None:
        """A named box; `lines` stand below the name."""
        self.rect(x, y, width, height, kind, 6)
        top = y + height / 2 - 8 * len(lines) + 5
        self.text(x + width / 2, top, name, "bold mid")
        for number, line in enumerate(lines, start=1):
            self.text(x + width / 2, top + 16 * number, line, "small dim mid")

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#tip)"' if both else ""
        self._parts.append(f'<path class="edge" d="{path}" marker-end="url(#tip)"{start}/>')

    def line(self, *points: tuple[float, float]) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self._parts.append(f'<path class="edge" d="{path}"/>')

    def number(self, x: float, y: float, number: int) -> None:
        """The number of a section of the guide."""
        self._parts.append(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="10"/>')
        self.text(x, y + 4.5, str(number), "bold mid on")

    def done(self) -> str:
        return "\n".join([*self._parts, "</svg>", ""])


def loop() -> str:
    p = Picture(
        960,
        500,
        "The loop: tasks, rollouts, steps, verdicts, batches and versions, and the process that each comes from",
    )
    p.box(20, 40, 130, 60, "you", "penstock, any client")
    p.box(250, 40, 190, 60, "NATS JetStream", "a transport; may be wiped")
    p.box(540, 40, 170, 60, "orchestrator", "intake, dispatch, rewards")
    p.box(
        810,
        40,
        130,
        420,
        "data pool",
        "Postgres:",
        "tasks, groups,",
        "rollouts, steps,",
        "verdicts, rewards,",
        "batches, versions",
        kind="pool",
    )
    p.box(250, 170, 190, 80, "runner", "a sandbox with", "the scaffold in it")
    p.box(540, 170, 170, 80, "verifier runner", "a fresh sandbox", "with the tests")
    p.box(250, 310, 190, 60, "gateway", "tokens in, tokens out")
    p.box(540, 310, 170, 60, "trainer", "prefix tree, CISPO")
    p.box(250, 420, 190, 50, "rollout servers", "SGLang, or the embedded one")
    p.arrow((150, 70), (247, 70))
    p.number(172, 70, 1)
    p.text(188, 60, "task", "small")
    p.arrow((440, 60), (537, 60), both=True)
    p.number(488, 60, 2)
    p.arrow((710, 60), (807, 60), both=True)
    p.text(759, 50, "rows", "small mid")
    p.arrow((320, 100), (320, 167))
    p.number(320, 132, 3)
    p.text(336, 137, "work", "small")
    p.arrow((345, 250), (345, 307), both=True)
    p.number(345, 278, 4)
    p.text(361, 283, "completions", "small")
    p.arrow((345, 370), (345, 417), both=True)
    p.text(356, 398, "token ids, logprobs", "small")
    p.line((250, 340), (215, 340), (215, 88))
    p.arrow((215, 88), (247, 88))
    p.number(215, 215, 5)
    p.text(108, 211, "each step, with", "small")
    p.text(108, 226, "its exact tokens", "small")
    p.arrow((425, 100), (425, 132), (590, 132), (590, 167), both=True)
    p.number(508, 132, 6)
    p.text(522, 127, "verdict", "small")
    p.arrow((807, 330), (713, 330))
    p.number(759, 330, 7)
    p.text(759, 315, "batch", "small mid")
    p.arrow((713, 355), (807, 355))
    p.text(759, 376, "commit, version", "small mid")
    p.arrow((625, 370), (625, 445), (443, 445))
    p.number(560, 445, 8)
    p.text(636, 420, "weights of the new version,", "small")
    p.text(636, 436, "while programs wait", "small")
    return p.done()


KINDS = {
    GroupState.TRAINED: "gone",
    GroupState.READY: "green",
    GroupState.DISPATCHED: "run",
}


def moments() -> list[tuple[str, str, list[QueueRow], list[int]]]:
    """(title, remark, rows, what may be taken now) of three moments; N = 8 groups in flight, W = 4 positions."""

    def rows(trained: Sequence[int], ready: Sequence[int], running: Sequence[int]) -> list[QueueRow]:
        states = {
            **dict.fromkeys(trained, GroupState.TRAINED),
            **dict.fromkeys(ready, GroupState.READY),
            **dict.fromkeys(running, GroupState.DISPATCHED),
        }
        return [QueueRow(seq, states[seq]) for seq in sorted(states)]

    found = []
    for title, remark, row in (
        (
            "the head is 3",
            "4 and 6 may be taken, though younger than 3; 7 and 9 are ready, but wait",
            rows(range(3), [4, 6, 7, 9], [3, 5, 8, 10]),
        ),
        (
            "7 is slow",
            "its window is used up: nothing is taken until 7 ends; it is never passed by more than W − 1 = 3",
            rows([*range(7), 8, 9, 10], [*range(11, 18)], [7]),
        ),
        (
            "7 has ended",
            "it was taken at once, and the window moved to the next position that is open",
            rows(range(11), [*range(11, 18)], [18]),
        ),
    ):
        found.append((title, remark, row, takeable(row, window=4, wanted=2)))
    return found


def window() -> str:
    p = Picture(960, 390, "The queue at three moments: only ready groups inside the window may enter a batch")
    cell, left = 40, 150
    for number, (title, remark, rows, allowed) in enumerate(moments()):
        y = 42 + 108 * number
        head_seq = head(rows)
        assert head_seq is not None
        p.text(16, y + 20, title, "bold")
        p.text(left, y + 62, remark, "small dim")
        by_seq = {row.seq: row.state for row in rows}
        for seq in range(20):
            x = left + cell * seq
            state = by_seq.get(seq)
            p.rect(x + 2, y, cell - 4, 30, KINDS[state] if state else "later")
            p.text(
                x + cell / 2,
                y + 20,
                str(seq),
                "mid on" if state in (GroupState.READY, GroupState.DISPATCHED) else "mid dim",
            )
            if seq in allowed:
                p.text(x + cell / 2, y - 10, "take", "small mid")
        p.rect(left + cell * head_seq - 2, y - 5, cell * 4 + 4, 40, "window", 6)
        p.text(left + cell * head_seq + 2, y + 48, "head", "small")
    y = 364
    for x, kind, label in (
        (150, "gone", "trained"),
        (250, "green", "ready: all members verified"),
        (465, "run", "dispatched, rollouts run"),
        (660, "later", "not dispatched"),
        (800, "window", "window, W = 4"),
    ):
        p.rect(x, y - 13, 18, 16, kind)
        p.text(x + 26, y, label, "small")
    return p.done()


# (index, agent and remark, parent step, tokens kept of the parent, new prompt or observation tokens, sampled tokens)
ROLLOUT = (
    (0, "main: a root", None, 0, 22, 8),
    (1, "main: continues 0", 0, 30, 8, 7),
    (2, "main/scout: a sub-agent, a root of its own", None, 0, 14, 6),
    (3, "main: continues 1; two policy versions", 1, 45, 9, 10),
    (4, "main: rewrites 3, keeps its first 22 tokens", 3, 22, 10, 6),
)


def steps() -> str:
    p = Picture(
        960,
        330,
        "The steps of a rollout: each stores what it adds to the context and what the policy sampled",
    )
    unit, left, y0, row = 8.2, 330, 30, 50
    full: dict[int, int] = {}
    stored = repeated = 0
    for position, (index, remark, parent, keep_len, delta, action) in enumerate(ROLLOUT):
        assert parent is None or keep_len <= full[parent]
        full[index] = keep_len + delta + action
        stored, repeated = stored + delta + action, repeated + full[index]
        y = y0 + row * position
        p.text(16, y + 13, f"step {index}", "bold")
        p.text(66, y + 13, remark, "small dim")
        x = left + unit * keep_len
        if keep_len:
            p.rect(left, y, unit * keep_len, 18, "kept")
            p.text(left + 6, y + 13, f"kept of step {parent}: {keep_len}", "small dim")
        p.rect(x, y, unit * delta, 18, "given")
        p.text(
            x + unit * delta / 2, y + 13, f"{'prompt' if parent is None else 'new'} {delta}", "small mid on"
        )
        if index == 3:  # a version came while it was sampled
            p.rect(x + unit * delta, y, unit * 6, 18, "green")
            p.rect(x + unit * (delta + 6), y, unit * (action - 6), 18, "other")
            p.text(x + unit * delta, y + 33, "sampled by v6, then by v7", "small dim")
            p.text(x + unit * (delta + 3), y + 13, "6", "small mid on")
            p.text(x + unit * (delta + 8), y + 13, "4", "small mid on")
        else:
            p.rect(x + unit * delta, y, unit * action, 18, "green")
            p.text(x + unit * (delta + action / 2), y + 13, str(action), "small mid on")
    y = y0 + row * len(ROLLOUT) + 12
    for x, kind, text in (
        (16, "given", "delta: stored, given to the policy"),
        (270, "green", "action: stored with logprobs and versions"),
        (560, "kept", "the rest of the state: a reference"),
    ):
        p.rect(x, y - 12, 18, 15, kind)
        p.text(x + 26, y, text, "small")
    p.text(16, y + 26, f"stored: {stored} tokens; written out, every state and action: {repeated}", "small")
    return p.done()


# A batch of two groups with two rollouts each: (what is shared with whom, tokens) along each sample.
SYSTEM, TASKS = 12, {"a": 10, "b": 8}
SAMPLES = (
    ("group a, rollout 1, step 0", "a", (("green", "a1", 6),)),
    ("group a, rollout 1, step 1", "a", (("green", "a1", 6), ("given", "a1o", 7), ("green", "a1s", 9))),
    ("group a, rollout 2, step 0", "a", (("green", "a2", 8),)),
    ("group b, rollout 3, step 0", "b", (("green", "b3", 7),)),
    ("group b, rollout 4, step 0", "b", (("green", "b4", 10),)),
    ("group b, rollout 4, step 1", "b", (("green", "b4", 10), ("given", "b4o", 6), ("green", "b4s", 8))),
)


def prefix() -> str:
    p = Picture(
        960,
        400,
        "The samples of a batch, one row each, and the prefix tree that holds each shared token once",
    )
    unit, left = 6.0, 185
    p.text(16, 30, "one row per sample", "bold")
    rows = 0
    for position, (name, task, parts) in enumerate(SAMPLES):
        y, x = 44 + 24 * position, float(left)
        p.text(16, y + 12, name, "small dim")
        for kind, label, size in (
            ("given", "system", SYSTEM),
            ("given", f"task {task}", TASKS[task]),
            *((k, "", n) for k, _, n in parts),
        ):
            p.rect(x, y, unit * size - 1, 16, kind, 2)
            p.text(x + unit * size / 2, y + 12, label, "small mid on")
            x, rows = x + unit * size, rows + size
    p.text(560, 60, f"{rows} tokens to forward", "bold")
    nodes = {name: n for _, _, parts in SAMPLES for _, name, n in parts}
    merged = SYSTEM + sum(TASKS.values()) + sum(nodes.values())
    p.text(16, 222, "the tree", "bold")
    p.text(560, 240, f"{merged} tokens to forward: {rows / merged:.1f} times fewer", "bold")
    p.text(560, 258, "the same loss and the same gradients", "small dim")
    x1 = left + unit * SYSTEM
    p.rect(left, 284, unit * SYSTEM - 1, 16, "given", 2)
    p.text(left + unit * SYSTEM / 2, 296, "system", "small mid on")
    for task, y in (("a", 246), ("b", 322)):
        p.line((x1, 292), (x1 + 14, 292), (x1 + 14, y + 8), (x1 + 24, y + 8))
        p.rect(x1 + 24, y, unit * TASKS[task] - 1, 16, "given", 2)
        p.text(x1 + 24 + unit * TASKS[task] / 2, y + 12, f"task {task}", "small mid on")
        fork = x1 + 24 + unit * TASKS[task]
        leaves = [parts for _, owner, parts in SAMPLES if owner == task and len(parts) == 1]
        for number, ((_, name, _),) in enumerate(leaves):
            at = y - 16 + 32 * number
            p.line((fork, y + 8), (fork + 12, y + 8), (fork + 12, at + 8), (fork + 22, at + 8))
            longest = max((parts for _, _, parts in SAMPLES if parts[0][1] == name), key=len)
            x = fork + 22
            for kind, _, size in longest:
                p.rect(x, at, unit * size - 1, 16, kind, 2)
                x += unit * size
            p.text(x + 8, at + 12, f"rollout {name[1]}", "small dim")
    for x, kind, label in (
        (16, "given", "given: trains nothing itself"),
        (270, "green", "sampled by the policy: trains"),
    ):
        p.rect(x, 374, 18, 15, kind)
        p.text(x + 26, 386, label, "small")
    return p.done()


PICTURES = {"loop.svg": loop, "window.svg": window, "steps.svg": steps, "prefix.svg": prefix}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
    sys.stdout.write(f"{len(PICTURES)} pictures in {HERE}\n")
