"""Poison messages by name. `mark` makes the bytes of every round its own, so that each is found again among the dead letters."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ops.lab.chaos.load import DOMAIN, a_task
from orchestrator.bus import subjects
from orchestrator.bus.subjects import HEADER_DEAD_KEPT, HEADER_DEAD_REASON, HEADER_DEAD_SUBJECT, HEADER_SCHEMA

DEEP: Final = 20_000
LONG: Final = 300_000  # characters
HUGE: Final = 10**30
UNUSED: Final = 10**15  # a rollout that no run has


class End(StrEnum):
    """How a message must end."""

    DEAD = "dead letter"
    REFUSED = "rejected, and a dead letter"
    ANSWERED = "answered as before"
    COUNTED = "counted"  # of an old lease, or already stored; or a dead letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """One message. `submission`: the id that an answer names; None: sha256 of the body, or no answer."""

    name: str
    subject: str
    body: bytes
    end: End
    headers: Mapping[str, str] = field(default_factory=dict)
    submission: str | None = None


def _nested(mark: str, *, key: str) -> bytes:
    return b'{"mark": "%s", "%s": ' % (mark.encode(), key.encode()) + b"[" * DEEP + b"]" * DEEP + b"}"


def tasks(run: str, mark: str, accepted: str) -> Iterator[Poison]:
    """Wrong submissions. `accepted`: the id of one that the run has accepted."""
    number = int(accepted.removeprefix("chaos:"))
    good: dict[str, Any] = {"task": a_task(number).to_message()}

    def like(
        name: str,
        end: End = End.REFUSED,
        *,
        to: str = "",
        headers: Mapping[str, str] | None = None,
        **changed: Any,
    ) -> Poison:
        submission = f"poison:{mark}:{name.replace(' ', '-')}"
        body = {**good, "submission": submission, **changed}
        named = body["submission"]
        return Poison(
            name=f"task: {name}",
            subject=to or subjects.tasks(run, DOMAIN),
            body=json.dumps(body).encode(),
            end=end,
            headers=headers or {},
            submission=named if named == submission else None,
        )

    def raw(name: str, body: bytes, end: End = End.REFUSED) -> Poison:
        return Poison(name=f"task: {name}", subject=subjects.tasks(run, DOMAIN), body=body, end=end)

    deep_task = {**good["task"], "deep": json.loads("[" * 500 + "]" * 500)}
    yield raw("not JSON", b"\xff\xfe\x00{" + mark.encode())
    yield raw("cut off", json.dumps({"label": mark, **good}).encode()[:-20])
    yield raw("nested deeply", _nested(mark, key="task"))
    yield like("nested within the task", task=deep_task)
    yield like("U+0000 in the id", submission=f"a\0{mark}")
    yield like("half of a surrogate pair", label="\ud800")
    yield like("an id too long", submission=mark + "s" * LONG)
    yield like("a label too long", label="l" * LONG)
    yield like("another type", task=7)
    yield like("an id that is a list", submission=[mark])
    yield like("an unknown key", sumbission="x")
    twice = f"poison:{mark}:a-key-twice"
    yield Poison(
        name="task: a key twice",
        subject=subjects.tasks(run, DOMAIN),
        end=End.REFUSED,
        submission=twice,
        body=json.dumps({**good, "submission": twice}).encode()[:-1] + b', "label": "a", "label": "b"}',
    )
    yield like("a huge number", group_size=HUGE)
    yield like("an infinite number", sampling={"temperature": float("inf")}, purpose="eval")
    yield like("a number out of range", version=2**63, purpose="eval")
    yield like("an unknown scaffold", scaffold="../../etc/passwd")
    yield like("a malformed domain", to=f"tasks.{run}.No+Where")
    yield like("an unknown run", End.DEAD, to="tasks.elsewhere.general")
    yield like("a malformed subject", to=f"tasks.{run}")
    yield like("an unknown schema", headers={HEADER_SCHEMA: "Nonsense/99"})
    yield Poison(
        name="task: an accepted one again",
        subject=subjects.tasks(run, DOMAIN),
        body=json.dumps({**good, "submission": accepted}).encode(),
        end=End.ANSWERED,
        submission=accepted,
    )


def reports(run: str, mark: str) -> Iterator[Poison]:
    """Wrong steps, results, verdicts and work, without a real one as a model."""
    for what, subject in _topics(run).items():

        def raw(name: str, body: bytes, what: str = what, subject: str = subject, **headers: str) -> Poison:
            named = {key.replace("_", "-"): value for key, value in headers.items()}
            return Poison(name=f"{what}: {name}", subject=subject, body=body, end=End.DEAD, headers=named)

        lease = {"run": run, "rollout": UNUSED, "attempt": 1, "epoch": 1, "mark": mark}
        yield raw("not JSON", b"\x00\xff" + mark.encode())
        yield raw("nested deeply", _nested(mark, key="reply"))
        yield raw("of other types", json.dumps({**lease, "rollout": [], "attempt": {}}).encode())
        yield raw("a huge number", json.dumps({**lease, "rollout": HUGE}).encode())
        yield raw("a schema of another topic", json.dumps(lease).encode(), Penstock_Schema="TaskSubmitted/1")
    yield Poison(
        name="blob: another content than its name says",
        subject=subjects.blob("0" * 64),
        body=mark.encode(),
        end=End.DEAD,
    )
    yield Poison(
        name="dead letter: made by hand",
        subject=subjects.dead("tasks"),
        body=b"\0" + mark.encode(),
        end=End.DEAD,
        headers={
            HEADER_DEAD_KEPT: "no",
            HEADER_DEAD_REASON: "x" * 2000,
            HEADER_DEAD_SUBJECT: "tasks..\u2028",
        },
    )


def _topics(run: str) -> dict[str, str]:
    return {
        "step": subjects.steps(run, "1"),
        "result": subjects.results_rollout(run),
        "verdict": subjects.results_verdict(run),
        "work": subjects.work_rollout(run),
        "verification": subjects.work_verify(run),
    }


KINDS: Final = {
    "steps": "step",
    "results.rollout": "result",
    "results.verdict": "verdict",
    "work.rollout": "work",
    "work.verify": "verification",
}
"""The kinds of messages that are forged (`subjects.kind_of`), and their names here."""


def forged(subject: str, body: bytes, mark: str) -> Iterator[Poison]:
    """A real message of another process, again and changed, without headers. The real one must be in its stream already: it counts, these do not."""
    real: dict[str, Any] = json.loads(body)
    what = KINDS[subjects.kind_of(subject)]

    def again(name: str, end: End = End.COUNTED, **changed: Any) -> Poison:
        other = json.dumps({**real, "mark": mark, **changed}).encode()
        return Poison(name=f"{what}: {name}", subject=subject, body=other, end=end)

    yield again("a real one again")
    yield again("of a rollout that is not there", rollout=UNUSED)
    yield again("of a lease that was never given", epoch=real["epoch"] + 1000)
    yield again("of a negative attempt", attempt=-1)
    yield again("of another run", End.DEAD, run="elsewhere")
    yield again("a rollout out of range", End.DEAD, rollout=2**63)
    if what == "step":
        yield again("half of a surrogate pair", End.COUNTED, agent="\ud800")
        yield again("other tokens under its number", End.COUNTED, action="AAAAAA==")
    if what == "result":
        yield again(
            "a path out of the directory", End.COUNTED, artifacts=[{"path": "../../x", "body": "eA=="}]
        )
        yield again("U+0000 in every text", End.COUNTED, reason="a\0", log="\0" * 1000, answer="\0")
        yield again("a log too long", End.COUNTED, log="l" * LONG)
    if what == "verdict":
        yield again("a reward of 2", End.DEAD, reward=2.0, failure_class="completed")
        yield again("an unknown end", End.DEAD, failure_class="splendid")
