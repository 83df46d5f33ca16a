"""The questions of a check. Each plays one script and judges what came of it; the first one is what the others are compared with."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scaffolds.base import Scaffold

from orchestrator.scaffold_check import drift
from orchestrator.scaffold_check.bench import CONTEXT, Bench, Played
from orchestrator.scaffold_check.policy import (
    Reply,
    is_sub_agent,
    shell_call,
    shell_tool,
    sub_agent_call,
    sub_agent_tool,
)
from orchestrator.scaffold_check.seen import Seen
from orchestrator.scaffold_check.tap import AUXILIARY, Fault, Script
from sandboxes.base import SandboxSpec

Verdict = Literal["pass", "FAIL", "n/a"]
WRITE = "echo done > out"
REFUSED_S = 60.0  # after 401 there is nothing to hope for
GROWTH = 6_000  # tokens that a conversation may grow by before the compaction question's context is full
RESERVE = 8_192  # tokens that programs keep free for a reply
NOISE = "seq 1 400"
ENDS = ("completed", "policy_failure")
PROBE = (
    "cat /proc/net/dev /proc/net/route;"
    " for at in 1.1.1.1/443 8.8.8.8/53 169.254.169.254/80 {tcp}; do"
    ' if (timeout 2 bash -c "exec 3<>/dev/tcp/$at") 2>/dev/null; then echo OPEN $at; fi; done'
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question. `detail`: the reason, or what was seen."""

    question: str
    verdict: Verdict
    detail: str


class Check:
    """Asks every question of one bench. `silence_s`: how long the policy keeps silent in the question about that."""

    def __init__(self, bench: Bench, *, silence_s: float, timeout_s: float) -> None:
        self._bench = bench
        self._scaffold: Scaffold = bench.scaffold
        self._silence_s = silence_s
        self._timeout_s = timeout_s
        self.played: list[Played] = []
        self.plain: Played | None = None

    @property
    def _tools(self) -> bool:
        assert self.plain is not None
        return any(shell_tool(request.seen.tools) for request in self.plain.own)

    def reply(self, seen: Seen) -> Reply:
        """The policy that does the task."""
        hints = self._scaffold.manifest.check
        shell = shell_tool(seen.tools)
        if is_sub_agent(seen):
            return Reply("the side work is done")
        if seen.turn == 0:
            return (
                Reply(calls=[shell_call(seen.tools, WRITE)]) if shell else Reply(hints.write or "I cannot.")
            )
        if hints.finish and shell:
            return Reply(calls=[shell_call(seen.tools, hints.finish)])
        return Reply("done")

    async def _play(
        self,
        first: Callable[[Seen], Reply] | None = None,
        faults: Mapping[int, Fault] | None = None,
        *,
        extra: int = 1,
        timeout_s: float | None = None,
    ) -> Played:
        """One attempt; `first` says the policy's first reply, which takes `extra` turns beside those that do the task."""

        def reply(seen: Seen) -> Reply:
            if first is None or is_sub_agent(seen):
                return self.reply(seen)
            return first(seen) if seen.turn == 0 else self.reply(replace(seen, turn=seen.turn - extra))

        script = Script(reply, lambda number, seen: (faults or {}).get(number))
        played = await self._bench.play(script, timeout_s=timeout_s or self._timeout_s)
        self.played.append(played)
        return played

    # ---- the questions ----

    async def task(self) -> list[Finding]:
        """One task, to a verdict; what the program sends while nothing fails."""
        self.plain = played = await self._play()
        found = [
            _judge(
                "one task, to a verdict", _passes(played), f"reward {played.reward}, {len(played.own)} calls"
            )
        ]
        found.append(self._conversations(played))
        streams = {request.seen.stream for request in played.own}
        for streamed, name in ((True, "stream"), (False, "non-stream")):
            if streamed in streams:
                spoken = sorted({r.seen.wire for r in played.own if r.seen.stream is streamed})
                wrong = _passes(played) or self._undeclared(spoken)
                found.append(_judge(name, wrong, "answered on the wire " + ", ".join(spoken)))
            else:
                habit = "always streams" if streams == {True} else "never streams"
                found.append(Finding(name, "n/a", f"the program {habit}"))
        return found

    def _undeclared(self, spoken: Sequence[str]) -> str:
        declared = self._scaffold.manifest.wire
        others = [wire for wire in spoken if wire != declared]
        return f"speaks {others[0]}, but `wire` says {declared}" if others else ""

    def _conversations(self, played: Played) -> Finding:
        """Which calls train: those of conversations with tools, or of the only one."""
        auxiliary = sum(request.number is None for request in played.requests)
        conversations = {request.seen.asked: request for request in reversed(played.own)}
        strangers = [r for r in conversations.values() if self._tools and not r.seen.tools]
        if strangers:
            first = strangers[0].seen.first[:60]
            problem = f"a call without tools would train, it begins with {first!r}: name it in `auxiliary`"
            return Finding("auxiliary calls", "FAIL", problem)
        marked = sum("auxiliary" in reasons for reasons in played.marked.values())
        wrong = f"{auxiliary} calls were auxiliary and {marked} are marked" if auxiliary != marked else ""
        return _judge(
            "auxiliary calls", wrong, f"{auxiliary} do not train; {len(conversations)} conversation trains"
        )

    async def unknown_session(self) -> list[Finding]:
        """401 for every call."""
        played = await self._play(
            faults=dict.fromkeys(range(AUXILIARY, 1000), "unknown"), timeout_s=REFUSED_S
        )
        statuses = {request.status for request in played.requests}
        wrong = ""
        if statuses != {401}:
            wrong = f"statuses {sorted(statuses)} instead of 401"
        elif played.failure != "infra_failure":
            wrong = f"the attempt counts as {played.failure} ({played.reason})"
        elif played.steps:
            wrong = f"{len(played.steps)} steps were recorded"
        return [_judge("401", wrong, f"ends after {len(played.own)} calls: {played.reason}")]

    async def parallel_tools(self) -> list[Finding]:
        """Two calls in one message."""
        question = "parallel tools"
        if not self._tools:
            return [Finding(question, "n/a", "it offers no tool that runs a command")]

        def two(seen: Seen) -> Reply:
            calls = [shell_call(seen.tools, command) for command in ("echo one > one", "echo two > two")]
            return Reply(calls=calls) if shell_tool(seen.tools) else Reply("done")

        played = await self._play(two)
        results = max((request.seen.results for request in played.own), default=0)
        wrong = _passes(played) or ("" if results >= 2 else f"{results} tool results came back for 2 calls")
        return [_judge(question, wrong, "both ran, both results came back")]

    async def ill_formed(self) -> list[Finding]:
        """A tool call that is no JSON."""
        if not self._tools:
            return [Finding("ill-formed output", "n/a", "without tools every text is well-formed")]
        raw = '<think>\nso\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"comm\n</tool_call>'
        played = await self._play(lambda seen: Reply(raw=raw))
        kinds = [row.parse for row in played.rows]
        wrong = _ends(played) or ("" if "ill_formed" in kinds else f"no step is ill_formed: {kinds}")
        return [_judge("ill-formed output", wrong, _how(played))]

    async def unavailable(self) -> list[Finding]:
        """503 twice before the first answer."""
        played = await self._play(faults={0: "503", 1: "503"})
        return [_judge("5xx", _passes(played), f"asks again, {len(played.own)} requests")]

    async def too_many(self) -> list[Finding]:
        """429 before the first answer. A program may give up on that: then the attempt has to be run again, not held against the policy."""
        if self._scaffold.manifest.kind == "white":
            return [Finding("429", "n/a", "it does not come on the native route")]
        played = await self._play(faults={0: "429"})
        if played.failure == "infra_failure" and not [
            row for row in played.rows if row.idx not in played.marked
        ]:
            return [Finding("429", "pass", "gives up at once: an infra_failure, which is run again")]
        return [_judge("429", _passes(played), f"asks again, {len(played.own)} requests")]

    async def duplicate(self) -> list[Finding]:
        """A reply that got lost on the way, asked for again with a retry header."""
        played = await self._play(faults={0: "duplicate"})
        turns = len({request.body_sha for request in played.own})
        own = len(played.steps) - sum("auxiliary" in reasons for reasons in played.marked.values())
        wrong = _passes(played) or ("" if own == turns else f"{own} steps for {turns} different requests")
        return [_judge("marked duplicate", wrong, "the stored reply, no further step")]

    async def disconnect(self) -> list[Finding]:
        """The connection breaks while the policy speaks."""
        played = await self._play(lambda seen: replace(self.reply(seen), after_s=1.0), {0: "cut"}, extra=0)
        again = sum(request.body_sha == played.own[0].body_sha for request in played.own) if played.own else 0
        wrong = _passes(played) or ("" if again > 1 else "it did not ask again")
        return [_judge("disconnect", wrong, f"the same body {again} times, {len(played.own)} requests")]

    async def length(self) -> list[Finding]:
        """A reply that is cut off."""
        played = await self._play(lambda seen: Reply("I begin with a long thought about out", cut=6))
        cuts = [row.finish for row in played.rows]
        wrong = _ends(played) or ("" if "length" in cuts else f"no step ended by length: {cuts}")
        return [_judge("length stop", wrong, _how(played))]

    async def silence(self) -> list[Finding]:
        """A policy that takes its time, with keep-alives on the stream meanwhile."""
        played = await self._play(
            lambda seen: replace(self.reply(seen), after_s=self._silence_s),
            extra=0,
            timeout_s=self._timeout_s + self._silence_s,
        )
        bodies = [request.body_sha for request in played.own]
        wrong = _passes(played) or (
            "" if len(bodies) == len(set(bodies)) else "it lost patience and asked again"
        )
        streamed = [request for request in played.own if request.seen.stream]
        if not wrong and streamed and not streamed[0].pings:
            wrong = "no keep-alive came"
        pings = f"{streamed[0].pings} keep-alives" if streamed else "not streamed: no keep-alives"
        return [_judge("long silence with pings", wrong, f"{self._silence_s:g} s, {pings}")]

    async def sub_agent(self) -> list[Finding]:
        """Two sub-agents at once."""
        assert self.plain is not None
        question = "concurrent sub-agent"
        agents = {row.agent for row in self.plain.rows}
        if len(agents) > 1:
            return [_judge(question, _passes(self.plain), "agents " + ", ".join(sorted(agents)))]
        offers = any(sub_agent_tool(request.seen.tools) for request in self.plain.own)
        if not offers:
            return [Finding(question, "n/a", "it offers no tool that starts a sub-agent")]

        def spawn(seen: Seen) -> Reply:
            offered = sub_agent_tool(seen.tools)
            return Reply(calls=[sub_agent_call(offered, n) for n in (1, 2)]) if offered else Reply("done")

        played = await self._play(spawn)
        side = {request.seen.asked for request in played.own if is_sub_agent(request.seen)}
        wrong = _passes(played) or ("" if len(side) == 2 else f"{len(side)} of 2 sub-agents asked the policy")
        return [_judge(question, wrong, f"{len(side)} conversations beside the main one")]

    async def egress(self) -> list[Finding]:
        """What the program's own sandbox can reach."""
        port = self._bench.tap.gateway.rpartition(":")[2]
        binds = self._scaffold.black().binds() if self._scaffold.manifest.kind == "black" else {}
        spec = SandboxSpec(binds=binds, gateway_socket=self._bench.socket)
        async with self._bench.provider.open(spec) as box:
            ended = await box.exec(["bash", "-c", PROBE.format(tcp=f"127.0.0.1/{port}")], timeout_s=30)
        said = ended.stdout.decode(errors="replace").splitlines()
        interfaces = {line.split(":")[0].strip() for line in said if ":" in line and "|" not in line}
        reached = [line for line in said if line.startswith("OPEN")]
        wrong = "; ".join([*reached, *(f"interface {name}" for name in sorted(interfaces - {"lo"}))])
        if "lo" not in interfaces:
            wrong = f"the probe could not look: {ended.stderr.decode(errors='replace')[-300:]!r}"
        return [
            _judge(
                "no egress",
                wrong,
                "no interface but lo, no address answers; the gateway's socket is the only way out",
            )
        ]

    async def compaction(self, small: Bench) -> list[Finding]:
        """A conversation that outgrows the context: `small` has just enough for it to begin."""
        question = "compaction"
        if not self._tools:
            return [
                Finding(
                    question, "n/a", "it offers no tool that runs a command: nothing makes its history grow"
                )
            ]
        largest, shrunk = 0, False

        def reply(seen: Seen) -> Reply:
            nonlocal largest, shrunk
            if not shell_tool(seen.tools):
                return Reply("the word done has to be written into out; nothing is done yet")
            shrunk = shrunk or seen.size < largest - len(NOISE)
            largest = max(largest, seen.size)
            if not shrunk:
                return Reply(calls=[shell_call(seen.tools, NOISE)])
            return self.reply(replace(seen, turn=min(seen.turn, 1) if WRITE in seen.said else 0))

        played = await small.play(Script(reply), timeout_s=2 * self._timeout_s)
        self.played.append(played)
        if shrunk:
            return [_judge(question, _ends(played), f"the history was rewritten; {_how(played)}")]
        if played.failure == "policy_failure" and played.reason == "turns":
            return [
                Finding(question, "n/a", f"its history does not fill the context in {len(played.own)} calls")
            ]
        if played.failure == "policy_failure" and played.reason == "context":
            return [
                Finding(
                    question,
                    "n/a",
                    "it does not compact: at the context's end the attempt is a policy_failure",
                )
            ]
        return [_judge(question, _ends(played), f"no compaction in {len(played.own)} calls; {_how(played)}")]

    def drift(self) -> Finding:
        """Whether every stored step is, id by id, what went to the rollout server and came back, in all that was played."""
        calls, wrong = drift.compare(self.played)
        return _judge("zero drift", wrong, f"{calls} calls compared")


def context_for(played: Played) -> int:
    """Tokens in which the conversation of `played` has room to begin and not to go on for long."""
    return min(CONTEXT, max((row.full_len for row in played.rows), default=0) + RESERVE + GROWTH)


QUESTIONS: Sequence[tuple[str, Callable[[Check], Awaitable[list[Finding]]]]] = (
    ("unknown_session", Check.unknown_session),
    ("parallel_tools", Check.parallel_tools),
    ("ill_formed", Check.ill_formed),
    ("too_many", Check.too_many),
    ("unavailable", Check.unavailable),
    ("duplicate", Check.duplicate),
    ("disconnect", Check.disconnect),
    ("length", Check.length),
    ("sub_agent", Check.sub_agent),
    ("silence", Check.silence),
    ("egress", Check.egress),
)


def _judge(question: str, wrong: str, detail: str) -> Finding:
    return Finding(question, "FAIL", wrong) if wrong else Finding(question, "pass", detail)


def _passes(played: Played) -> str:
    """Empty when the task was done, else what happened instead."""
    return "" if played.passed else f"{_how(played)}, reward {played.reward}: {played.log[-300:]!r}"


def _ends(played: Played) -> str:
    """Empty when the attempt counts as the policy's, whatever it came to."""
    return "" if played.failure in ENDS else _passes(played)


def _how(played: Played) -> str:
    return f"{played.failure} ({played.reason})" if played.reason else played.failure
