"""Both error rates of the search for leaks, over generated tasks: how often it passes a leak over, how often it suspects an innocent file.

A suspect is not yet a finding: the driver confirms it with a run of the solution (`orchestrator.vetting.leak`), which removes most of the
innocent ones. These are the rates before that.
"""

import base64
import gzip
import random
from collections.abc import Callable
from functools import cache

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting import leaks
from orchestrator.tasks.vetting.leaks import Readable, search
from orchestrator.tasks.vetting.secrets import Solved, secrets_of
from orchestrator.tasks.vetting.shown import not_shown

N = 108
MAX_MISSED = 0.03
MAX_SUSPECTED = 0.05

WORDS = [
    "account",
    "batch",
    "buffer",
    "cache",
    "client",
    "column",
    "config",
    "cursor",
    "device",
    "event",
    "field",
    "filter",
    "frame",
    "handle",
    "index",
    "item",
    "key",
    "label",
    "apply",
    "build",
    "check",
    "clear",
    "close",
    "count",
    "decode",
    "drop",
    "fetch",
    "find",
    "format",
    "group",
    "join",
    "limit",
    "load",
    "map",
    "merge",
    "parse",
    "read",
]
NOUNS, VERBS = WORDS[:20], WORDS[20:]


def function(rng: random.Random) -> list[str]:
    """A function of the kind that projects are full of. The lines come from a few templates, so that functions share some."""
    noun, other, verb = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(VERBS)
    body = [
        "    result = {}",
        f"    for {noun} in {other}s:",
        f"        if not {noun}.valid:",
        "            continue",
        f"        result[{noun}.name] = {verb}_{other}({noun}, {rng.randint(2, 40)})",
        f"        total += {noun}.size * {rng.randint(2, 900)}",
        "    logger.debug('finished, %d entries', len(result))",
        f"    return sorted(result.values(), key=lambda each: each.{other}_{rng.choice(NOUNS)})",
    ]
    kept = sorted(rng.sample(range(len(body)), rng.randint(5, len(body))))
    return [f"def {verb}_{noun}({other}s, total=0):", *(body[n] for n in kept)]


def module(rng: random.Random, functions: int) -> list[str]:
    lines = [
        "import json",
        "import logging",
        "from pathlib import Path",
        "",
        "logger = logging.getLogger(__name__)",
        "",
    ]
    for _ in range(functions):
        lines += ["", *function(rng)]
    return [*lines, "", 'if __name__ == "__main__":', "    raise SystemExit(main())"]


def text(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def value(rng: random.Random) -> str:
    kinds: tuple[Callable[[], str], ...] = (
        lambda: f"{rng.getrandbits(64):016x}",
        lambda: f"key-{rng.getrandbits(48):012x}",
        lambda: "-".join(rng.choice(NOUNS) for _ in range(5)),
        lambda: (
            f"{rng.choice(NOUNS)}_{rng.randint(1000, 9999)}_{rng.choice('abcdef')}{rng.randint(100, 999)}"
        ),
    )
    return rng.choice(kinds)()


def alike(rng: random.Random) -> tuple[dict[str, bytes], dict[str, bytes], bytes]:
    """Hidden tests that extend and repeat a project's; these, and the pattern of a new file; the new file."""
    cases, same = module(rng, 30), text(module(rng, 8))
    before, kept = module(rng, 3), rng.randint(4, 7)
    added = [
        f"    {rng.choice(VERBS)}_{rng.choice(NOUNS)}(rows, limit={rng.randint(2, 9999)})"
        for _ in range(kept)
    ]
    hidden = {"tests/test_app.py": text([*cases, "", *function(rng)]), "tests/test_lib.py": same}
    shown = {
        "/app/tests/test_app.py": text(cases),
        "/app/tests/test_lib.py": same,
        "/app/lib/like.py": text(before),
    }
    return hidden, shown, text([*before, "", "def solve(rows):", *added])


def a_task(rng: random.Random) -> tuple[Task, Solved, dict[str, bytes], list[str], str]:
    """A task whose solution adds a function to app.py, and writes a new file and a value; its work; its innocent files; the function; the value."""
    before, added, secret = module(rng, 6), function(rng), value(rng)
    hidden, shown, new = alike(random.Random(secret))
    solution = text(["cat >> app.py <<'END'", *added, "END", f"echo {secret} > out.txt"])
    solution += b"cat > new.py <<'END'\n" + new + b"END\n"
    tests = text(
        [
            "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt",
            f'want="{secret}"',
            '[ "$(head -c 100 out.txt)" = "$want" ] && python3 -I "$PENSTOCK_UNTRUSTED" 5 python3 app.py',
            "[ $? = 0 ] && echo 1 > /logs/verifier/reward.txt",
        ]
    )
    files = {
        "task.toml": b"",
        "instruction.md": b"extend app.py",
        "tests/test.sh": tests,
        "solution/solve.sh": solution,
        **hidden,
    }
    solved = Solved(
        written={"app.py": text([*before, *added]), "out.txt": f"{secret}\n".encode(), "new.py": new},
        before={"/app/app.py": text(before)},
    )
    innocent = shown | {f"/app/lib/{n}.py": text(module(rng, rng.randint(3, 8))) for n in range(6)}
    innocent |= {
        "/app/app.py": text(before),
        "/app/README.md": text(
            [
                f"# {rng.choice(NOUNS)}",
                "Run python3 app.py. See https://example.org/docs/index.html for more.",
            ]
        ),
        "/app/lock.txt": text(
            [f"{rng.choice(NOUNS)}==1.{n} --hash=sha256:{rng.getrandbits(256):064x}" for n in range(20)]
        ),
        "/app/data.csv": text(
            [
                f"2024-01-{n:02d}T00:00:00Z,{rng.choice(NOUNS)},{rng.randint(10**11, 10**12)}"
                for n in range(1, 28)
            ]
        ),
        "/app/logo.png": rng.randbytes(4000),
        "/app/data.gz": gzip.compress(text(module(rng, 8)), mtime=0),
        "/app/data.b64": base64.encodebytes(text(module(rng, 4))),
    }
    return Task.from_files(files), solved, innocent, added, secret


LEAKS: dict[str, Callable[[random.Random, list[str], str], bytes]] = {
    "the function in a copy of the module": lambda rng, added, _: text([*module(rng, 5), "", *added]),
    "most of the function": lambda rng, added, _: text(
        [*module(rng, 2), *rng.sample(added, max(len(added) * 3 // 4, 1))]
    ),
    "the function as a comment": lambda _, added, __: text([f"# {line}" for line in added]),
    "the value in a note": lambda rng, _, secret: text([f"{rng.choice(NOUNS)} = {secret}"]),
    "base64": lambda _, added, __: base64.encodebytes(text(added)),
    "hex": lambda _, __, secret: f"0x{secret.encode().hex()}\n".encode(),
    "reversed": lambda _, __, secret: text([secret[::-1]]),
    "compressed": lambda _, added, secret: gzip.compress(text([*added, secret]), mtime=0),
    "compressed, then base64": lambda _, __, secret: base64.b64encode(
        gzip.compress(secret.encode(), mtime=0)
    ),
}


@cache
def rates(share: float = 0.0) -> tuple[float, float]:
    """The shares of missed leaks, and of innocent files that are suspected. `share`: another threshold, 0: the product's."""
    with pytest.MonkeyPatch.context() as patch:
        if share:
            patch.setattr(leaks, "PLAIN", share)
            patch.setattr(leaks, "ENCODED", share)
        return _rates()


def _rates() -> tuple[float, float]:
    missed = suspected = looked = 0
    for seed in range(N):
        rng = random.Random(seed)
        task, solved, innocent, added, secret = a_task(rng)
        kind = list(LEAKS)[seed % len(LEAKS)]
        planted = {"/app/x": LEAKS[kind](rng, added, secret)}
        readable = Readable(files=innocent | planted, variables={})
        bodies = not_shown(secrets_of(task, solved), solved, readable)
        places = {suspect.path for suspect in search(bodies, readable).suspects}
        missed += "/app/x" not in places
        suspected += len(places - {"/app/x"})
        looked += len(innocent)
    return missed / N, suspected / looked


def test_both_error_rates_are_low() -> None:
    missed, suspected = rates()
    print(f"missed {missed:.1%} of {N} leaks, suspected {suspected:.2%} of innocent files")
    assert missed <= MAX_MISSED and suspected <= MAX_SUSPECTED


@pytest.mark.parametrize(("share", "worse"), [(0.05, "suspected"), (0.97, "missed")])
def test_another_threshold_of_lines_errs_more(share: float, worse: str) -> None:
    (missed, suspected), other = rates(), rates(share)
    print(f"share {share}: missed {other[0]:.1%}, suspected {other[1]:.2%}")
    assert other[1] > suspected if worse == "suspected" else other[0] > missed
