"""Publishes poison into a run that works, and waits until each piece has ended by name.

| produces | waits for | unblocked by |
|---|---|---|
| poison messages; again, those without an end | a dead letter, an answer, the end of their stay in the stream | orchestrator, runners |
| poison agents, through the load | nothing | |

A first round is alone: no fault is injected during it, so no process may end. Later rounds are mixed with the faults, which may take messages away;
these are published again, as every sender of ours does.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5, sha256
from typing import Any, Final

import anyio
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ops.lab.chaos.load import SubmittedLoad
from ops.lab.chaos.poison import agents
from ops.lab.chaos.poison.messages import KINDS, End, Poison, forged, reports, tasks
from ops.lab.chaos.watch import AWAY
from orchestrator.bus import subjects
from orchestrator.bus.link import urls_of
from orchestrator.contracts.states import SubmissionStatus

POLL_INTERVAL_S = 0.2
AGAIN_S = 15.0  # without a new end
BETWEEN_S = 30.0
MIN_MESSAGES, MIN_AGENTS = 20, 5
COUNTERS: Final = ("steps_stale", "steps_repeated", "results_stale", "verdicts_stale", "assignments_stale")
LETTERS = "select md5(body) as body from dead_letters where dead_letter_id > :after"
NEWEST = "select coalesce(max(dead_letter_id), 0) from dead_letters"
COUNTS = "select coalesce(sum(value), 0) from counters where run_id = :run and name = any(:names)"
ACCEPTED = """select submission from groups where run_id = :run and submission like 'chaos:%' order by group_id limit 1"""
UNDONE = "select count(*) from groups where run_id = :run and submission = any(:ids) and done"
AGENTS = """select g.submission, g.state, max(w.performance) as reward
  from groups g join rollouts r on r.group_id = g.group_id left join latest_rewards w on w.rollout_id = r.rollout_id
 where g.run_id = :run and g.submission like :prefix group by 1, 2"""
CLEAN = """select count(*) as all, count(*) filter (where not done) as open, count(*) filter (where state = 'dead') as dead
  from groups where run_id = :run and submission like 'chaos:%'"""


@dataclass(slots=True, kw_only=True)
class Poisoned:
    """The messages and agents that have been mixed in, and their ends. `ends`: messages by end; `agents`: groups by kind and end; `restarts`: of
    processes while no fault was injected."""

    ends: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    restarts: int = 0

    @property
    def messages(self) -> int:
        return sum(self.ends.values())


@dataclass(slots=True, kw_only=True)
class Mixing:
    """`living` gives the process ids of the stack by name. `problems` are sentences, each a violation."""

    nats_url: str
    run: str
    run_id: int
    engine: AsyncEngine
    load: SubmittedLoad
    living: Callable[[], Mapping[str, int]]
    poisoned: Poisoned = field(default_factory=Poisoned)
    problems: list[str] = field(default_factory=list)
    _turn: int = 0
    _last: bool = False
    _after: int = 0  # the newest dead letter before the present round
    _waiting: dict[str, Poison] = field(default_factory=dict)
    _uncounted: str = ""  # of the first round
    _lost: str = ""  # why NATS cannot be reached; "": it can
    _over: anyio.Event = field(default_factory=anyio.Event)

    def missing(self) -> str:
        """The ends that the present round still waits for, in words."""
        if self._lost:
            return self._lost
        names = ", ".join(self._waiting)
        if names:
            return f"an end of the poison messages: {names}"
        return self._uncounted or "an end of every poison agent"

    async def alone(self) -> None:
        """One round of messages, forged ones too, and of agents; returns when all of it has ended."""
        before = self.living()
        ids = self._submit()
        counted = await self._value(COUNTS, names=list(COUNTERS))
        sent = await self._round(forge=True)
        await self._all_counted([poison for poison, end in sent if end == End.COUNTED], counted)
        while await self._value(UNDONE, ids=ids) < len(ids):
            await anyio.sleep(POLL_INTERVAL_S)
        after = self.living()
        ended = [name for name, pid in before.items() if after.get(name) != pid]
        self.poisoned.restarts += len(ended)
        self.problems += [f"{name} ended while nothing but poison was sent" for name in ended]

    async def _all_counted(self, silent: Sequence[Poison], before: int) -> None:
        """Returns when each of `silent` is in a counter or a dead letter: that is stored after its message has left the stream."""
        while True:
            letters = {row.body for row in await self._rows(LETTERS, after=self._after)}
            dead = [poison for poison in silent if _digest(poison) in letters]
            counted = await self._value(COUNTS, names=list(COUNTERS)) - before
            if counted >= len(silent) - len(dead):
                self.poisoned.ends.subtract({End.COUNTED: len(dead)})
                self.poisoned.ends.update({End.DEAD: len(dead)})
                self._uncounted = ""
                return
            self._uncounted = f"{len(silent) - len(dead) - counted} poison messages in no counter"
            await anyio.sleep(POLL_INTERVAL_S)

    async def mixed(self) -> None:
        """Rounds of messages, and one of agents, until `close` was called; returns when the last has ended."""
        self._submit()
        while True:
            await self._round(forge=False)
            if self._last:
                self._over.set()
                return
            with anyio.move_on_after(BETWEEN_S):
                while not self._last:
                    await anyio.sleep(POLL_INTERVAL_S)

    async def close(self) -> None:
        """The round that is under way is the last one; returns when it has ended."""
        self._last = True
        await self._over.wait()

    async def finish(self) -> None:
        """After the run has drained: what became of the agents and of everything else. Fills `problems`."""
        for row in await self._rows(AGENTS, prefix=f"{agents.PREFIX}%"):
            kind = agents.kind_of(row.submission)
            self.poisoned.agents[f"{kind}: {row.state}"] += 1
            if row.reward is not None and row.reward >= agents.MIN_OWN:
                self.problems.append(f"the poison agent {kind} has the reward {row.reward} of its own making")
        [clean] = await self._rows(CLEAN)
        if clean.open or clean.dead:
            self.problems.append(f"of {clean.all} clean groups {clean.open} are open and {clean.dead} dead")
        if self.poisoned.messages < MIN_MESSAGES:
            self.problems.append(f"{self.poisoned.messages} poison messages ended: {MIN_MESSAGES} have to")
        if sum(self.poisoned.agents.values()) < MIN_AGENTS:
            self.problems.append(
                f"{sum(self.poisoned.agents.values())} poison agents ended: {MIN_AGENTS} have to"
            )

    def _submit(self) -> list[str]:
        self._turn += 1
        ids = agents.submissions(self._mark())
        self.load.also(ids)
        return ids

    def _mark(self) -> str:
        return f"{self.load.published}-{self._turn}"

    async def _round(self, *, forge: bool) -> list[tuple[Poison, str]]:
        """Publish one round until every message has ended; returns the messages with their ends."""
        self._turn += 1
        mark, waiting, ends = self._mark(), self._waiting, list[tuple[Poison, str]]()
        while True:
            try:
                async with _connected(urls_of(self.nats_url)[0]) as client:
                    self._lost = ""
                    if not waiting:
                        self._after = await self._value(NEWEST)
                        accepted = await self._accepted()
                        made = [*tasks(self.run, mark, accepted), *reports(self.run, mark)]
                        if forge:
                            made += await _forge(client, self.run, mark)
                        waiting.update((poison.name, poison) for poison in made)
                    await self._until_ended(client, waiting, ends)
                    break
            except (nats.errors.Error, *AWAY) as error:
                self._lost = f"a connection ({type(error).__name__}: {error})"
                await anyio.sleep(POLL_INTERVAL_S)
        self.poisoned.ends.update(end for _, end in ends)
        return ends

    async def _until_ended(
        self, client: Client, waiting: dict[str, Poison], ends: list[tuple[Poison, str]]
    ) -> None:
        answers: dict[str, str] = {}

        async def on_answer(message: Msg) -> None:
            answer: dict[str, Any] = json.loads(message.data)
            answers[answer["submission"]] = answer["status"]

        await client.subscribe(subjects.every_answer(self.run), cb=on_answer)
        stream = client.jetstream()
        while waiting:
            numbers = {}
            for poison in waiting.values():
                receipt = await stream.publish(
                    poison.subject, poison.body, headers=dict(poison.headers) or None
                )
                numbers[poison.name] = (receipt.stream, receipt.seq)
            with anyio.move_on_after(AGAIN_S):
                while waiting:
                    letters = {row.body for row in await self._rows(LETTERS, after=self._after)}
                    for name, poison in list(waiting.items()):
                        gone = poison.end is End.COUNTED and await _settled(client, *numbers[name])
                        if (end := _end(poison, letters, answers, settled=gone)) is not None:
                            ends.append((poison, end))
                            del waiting[name]
                    await anyio.sleep(POLL_INTERVAL_S)

    async def _accepted(self) -> str:
        while not (found := await self._rows(ACCEPTED)):
            await anyio.sleep(POLL_INTERVAL_S)
        return str(found[0].submission)

    async def _rows(self, statement: str, **more: Any) -> Sequence[Any]:
        async with self.engine.connect() as connection:
            return (await connection.execute(text(statement), {"run": self.run_id, **more})).all()

    async def _value(self, statement: str, **more: Any) -> int:
        return int((await self._rows(statement, **more))[0][0])


def _end(poison: Poison, letters: set[str], answers: Mapping[str, str], *, settled: bool) -> str | None:
    """How a message has ended; None: not yet, or otherwise than it must."""
    dead = _digest(poison) in letters
    answer = answers.get(poison.submission or sha256(poison.body).hexdigest())
    match poison.end:
        case End.DEAD:
            return End.DEAD if dead else None
        case End.REFUSED:
            return End.REFUSED if dead and answer == SubmissionStatus.REJECTED else None
        case End.ANSWERED:
            return End.ANSWERED if answer == SubmissionStatus.ACCEPTED else None
        case End.COUNTED:
            return End.DEAD if dead else End.COUNTED if settled else None


def _digest(poison: Poison) -> str:
    return md5(poison.body, usedforsecurity=False).hexdigest()


async def _settled(client: Client, stream: str, number: int) -> bool:
    """Whether the message has left its work queue."""
    try:
        await client.jetstream().get_msg(stream, number)
    except NotFoundError:
        return True
    return False


async def _forge(client: Client, run: str, mark: str) -> list[Poison]:
    """Forgeries of the first real message of each kind that is published from now on."""
    found: dict[str, Msg] = {}
    complete = anyio.Event()

    async def on_message(message: Msg) -> None:
        if (kind := subjects.kind_of(message.subject)) in KINDS and subjects.run_of(message.subject) == run:
            found.setdefault(kind, message)
            if len(found) == len(KINDS):
                complete.set()

    for subject in ("steps.>", "results.>", "work.>"):
        await client.subscribe(subject, cb=on_message)
    await complete.wait()
    return [poison for message in found.values() for poison in forged(message.subject, message.data, mark)]


class _connected:
    """A connection of our own, which ends with NATS."""

    def __init__(self, url: str) -> None:
        self._url, self._client = url, Client()

    async def __aenter__(self) -> Client:
        await self._client.connect(self._url, name="chaos-poison", allow_reconnect=False, error_cb=_silent)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        with anyio.move_on_after(1, shield=True):
            await self._client.close()


async def _silent(error: Exception) -> None:
    """Drop the errors of a connection: the faults cause them on purpose."""
