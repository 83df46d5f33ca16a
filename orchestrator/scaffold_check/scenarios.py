"""The questions of a check. Each plays one script and judges the result; the first one is the reference for the others."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scaffolds.base import Scaffold, ScaffoldKind

from orchestrator.contracts.marks import BudgetKind, Finish, MarkReason, ParseStatus
from orchestrator.contracts.states import FailureClass
from orchestrator.scaffold_check import drift
from orchestrator.scaffold_check.bench import Bench, Played
from orchestrator.scaffold_check.policy import (
    is_sub_agent,
    shell_call,
    shell_tool,
    sub_agent_call,
    sub_agent_tool,
)
from orchestrator.scaffold_check.seen import SeenRequest
from orchestrator.scaffold_check.tap import AUXILIARY, Fault, Request, Script
from orchestrator.scripted.reply import Reply
from orchestrator.scripted.services import CONTEXT
from sandboxes.base import SandboxSpec

Verdict = Literal["pass", "FAIL", "n/a"]
WRITE = "echo done > out"
REFUSED_S = 60.0  # after 401 the program cannot succeed
GROWTH = 6_000  # tokens of growth until a conversation fills the context of the compaction question
RESERVE = 8_192  # tokens that programs keep free for a reply
NOISE = "seq 1 400"
ENDS = (FailureClass.COMPLETED, FailureClass.POLICY_FAILURE)
PROBE = (
    "cat /proc/net/dev /proc/net/route;"
    " for at in 1.1.1.1/443 8.8.8.8/53 169.254.169.254/80 {tcp}; do"
    ' if (timeout 2 bash -c "exec 3<>/dev/tcp/$at") 2>/dev/null; then echo OPEN $at; fi; done'
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question. `detail`: the reason, or the observation."""

    question: str
    verdict: Verdict
    detail: str


class ScaffoldCheck:
    """All questions on one bench. `silence_s`: the policy's delay in the question about silence."""

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

    def reply(self, seen: SeenRequest) -> Reply:
        """The policy that does the task."""
        hints = self._scaffold.manifest.check
        shell = shell_tool(seen.tools)
        if is_sub_agent(seen):
            return Reply(text="the side work is done")
        if seen.turn == 0:
            return (
                Reply(calls=[shell_call(seen.tools, WRITE)])
                if shell
                else Reply(text=hints.write or "I cannot.")
            )
        if hints.finish and shell:
            return Reply(calls=[shell_call(seen.tools, hints.finish)])
        return Reply(text="done")

    async def _play(
        self,
        first: Callable[[SeenRequest], Reply] | None = None,
        faults: Mapping[int, Fault] | None = None,
        *,
        extra: int = 1,
        timeout_s: float | None = None,
    ) -> Played:
        """One attempt. `first` gives the policy's first reply, which takes `extra` turns in addition to the task's."""

        def reply(seen: SeenRequest) -> Reply:
            if first is None or is_sub_agent(seen):
                return self.reply(seen)
            return first(seen) if seen.turn == 0 else self.reply(replace(seen, turn=seen.turn - extra))

        script = Script(reply, lambda number, seen: (faults or {}).get(number))
        played = await self._bench.play(script, timeout_s=timeout_s or self._timeout_s)
        self.played.append(played)
        return played

    # ---- the questions ----

    async def task(self) -> list[Finding]:
        """One task, to a verdict; also judges the program's requests while nothing fails."""
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
                wires = sorted({r.seen.wire for r in played.own if r.seen.stream is streamed})
                wrong = _passes(played) or self._undeclared(wires)
                found.append(_judge(name, wrong, "answered on the wire " + ", ".join(wires)))
            else:
                habit = "always streams" if streams == {True} else "never streams"
                found.append(Finding(name, "n/a", f"the program {habit}"))
        return found

    def _undeclared(self, spoken: Sequence[str]) -> str:
        declared = self._scaffold.manifest.wire
        others = [wire for wire in spoken if wire != declared]
        return f"speaks {others[0]}, but `wire` says {declared}" if others else ""

    def _conversations(self, played: Played) -> Finding:
        """Which calls train: those of conversations with tools, or of the only conversation."""
        question = "auxiliary calls"
        auxiliary = sum(request.number is None for request in played.requests)
        side_calls = played.side_calls
        conversations = {r.seen.first_user_text: r for r in reversed(played.own) if r not in side_calls}
        without_tools = [r for r in conversations.values() if self._tools and not r.seen.tools]
        if without_tools:
            first = without_tools[0].seen.first[:60]
            problem = f"a call without tools trains, it begins with {first!r}: name it in `auxiliary`"
            return Finding(question, "FAIL", problem)
        if side_calls:
            single = self._scaffold.manifest.conversations == "one"
            many = ', or say conversations = "many"' if single else ""
            return Finding(question, "FAIL", _untrained(side_calls, f"name such calls in `auxiliary`{many}"))
        marked = sum(MarkReason.AUXILIARY in reasons for reasons in played.marked.values())
        wrong = f"{auxiliary} calls were auxiliary and {marked} are marked" if auxiliary != marked else ""
        train = "conversation trains" if len(conversations) == 1 else "conversations train"
        return _judge(question, wrong, f"{auxiliary} do not train; {len(conversations)} {train}")

    async def unknown_session(self) -> list[Finding]:
        """401 for every call."""
        played = await self._play(
            faults=dict.fromkeys(range(AUXILIARY, 1000), "unknown"), timeout_s=REFUSED_S
        )
        statuses = {request.status for request in played.requests}
        wrong = ""
        if statuses != {401}:
            wrong = f"statuses {sorted(statuses)} instead of 401"
        elif played.failure is not FailureClass.INFRA_FAILURE:
            wrong = f"the attempt counts as {played.failure} ({played.reason})"
        elif played.steps:
            wrong = f"{len(played.steps)} steps were recorded"
        return [_judge("401", wrong, f"ends after {len(played.own)} calls: {played.reason}")]

    async def parallel_tools(self) -> list[Finding]:
        """Two calls in one message."""
        question = "parallel tools"
        if not self._tools:
            return [Finding(question, "n/a", "it offers no tool that runs a command")]

        def two_calls(seen: SeenRequest) -> Reply:
            calls = [shell_call(seen.tools, command) for command in ("echo one > one", "echo two > two")]
            return Reply(calls=calls) if shell_tool(seen.tools) else Reply(text="done")

        played = await self._play(two_calls)
        results = max((request.seen.results for request in played.own), default=0)
        wrong = _passes(played) or ("" if results >= 2 else f"{results} tool results came back for 2 calls")
        return [_judge(question, wrong, "both ran, both results came back")]

    async def ill_formed(self) -> list[Finding]:
        """A tool call that is not JSON."""
        if not self._tools:
            return [Finding("ill-formed output", "n/a", "without tools every text is well-formed")]
        raw = '<think>\nso\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"comm\n</tool_call>'
        played = await self._play(lambda seen: Reply(raw=raw))
        kinds = [row.parse for row in played.rows]
        wrong = _ends(played) or (
            "" if ParseStatus.ILL_FORMED in kinds else f"no step is ill_formed: {kinds}"
        )
        return [_judge("ill-formed output", wrong, _how(played))]

    async def unavailable(self) -> list[Finding]:
        """503 twice before the first answer."""
        played = await self._play(faults={0: "503", 1: "503"})
        return [_judge("5xx", _passes(played), f"asks again, {len(played.own)} requests")]

    async def too_many(self) -> list[Finding]:
        """429 before the first answer. A program may give up on it: then the attempt must be run again, not attributed to the policy."""
        if self._scaffold.manifest.kind == ScaffoldKind.WHITE:
            return [Finding("429", "n/a", "it does not come on the native route")]
        played = await self._play(faults={0: "429"})
        if played.failure is FailureClass.INFRA_FAILURE and not [
            row for row in played.rows if row.idx not in played.marked
        ]:
            return [Finding("429", "pass", "gives up at once: an infra_failure, which is run again")]
        return [_judge("429", _passes(played), f"asks again, {len(played.own)} requests")]

    async def duplicate(self) -> list[Finding]:
        """A reply lost on the way, requested again with a retry header."""
        played = await self._play(faults={0: "duplicate"})
        turns = len({request.body_sha for request in played.own})
        steps = len(played.steps) - sum(MarkReason.AUXILIARY in reasons for reasons in played.marked.values())
        wrong = _passes(played) or ("" if steps == turns else f"{steps} steps for {turns} different requests")
        return [_judge("marked duplicate", wrong, "the stored reply, no further step")]

    async def disconnect(self) -> list[Finding]:
        """The connection breaks during the policy's reply."""
        played = await self._play(lambda seen: replace(self.reply(seen), after_s=1.0), {0: "cut"}, extra=0)
        times = sum(request.body_sha == played.own[0].body_sha for request in played.own) if played.own else 0
        wrong = _passes(played) or ("" if times > 1 else "it did not ask again")
        return [_judge("disconnect", wrong, f"the same body {times} times, {len(played.own)} requests")]

    async def length(self) -> list[Finding]:
        """A reply that is cut off."""
        played = await self._play(lambda seen: Reply(text="I begin with a long thought about out", cut=6))
        cuts = [row.finish for row in played.rows]
        wrong = _ends(played) or ("" if Finish.LENGTH in cuts else f"no step ended by length: {cuts}")
        return [_judge("length stop", wrong, _how(played))]

    async def silence(self) -> list[Finding]:
        """A slow policy, with keep-alives on the stream until it answers."""
        played = await self._play(
            lambda seen: replace(self.reply(seen), after_s=self._silence_s),
            extra=0,
            timeout_s=self._timeout_s + self._silence_s,
        )
        bodies = [request.body_sha for request in played.own]
        wrong = _passes(played) or (
            "" if len(bodies) == len(set(bodies)) else "it did not wait and repeated the request"
        )
        streamed = [request for request in played.own if request.seen.stream]
        if not wrong and streamed and not streamed[0].pings:
            wrong = "no keep-alive came"
        pings = f"{streamed[0].pings} keep-alives" if streamed else "not streamed: no keep-alives"
        return [_judge("long silence with pings", wrong, f"{self._silence_s:g} s, {pings}")]

    async def sub_agent(self) -> list[Finding]:
        """Two concurrent sub-agents."""
        assert self.plain is not None
        question = "concurrent sub-agent"
        agents = {row.agent for row in self.plain.rows}
        if len(agents) > 1:
            return [_judge(question, _passes(self.plain), "agents " + ", ".join(sorted(agents)))]
        offers = any(sub_agent_tool(request.seen.tools) for request in self.plain.own)
        if not offers:
            return [Finding(question, "n/a", "it offers no tool that starts a sub-agent")]

        def spawn(seen: SeenRequest) -> Reply:
            offered = sub_agent_tool(seen.tools)
            return (
                Reply(calls=[sub_agent_call(offered, n) for n in (1, 2)]) if offered else Reply(text="done")
            )

        played = await self._play(spawn)
        side = {request.seen.first_user_text for request in played.own if is_sub_agent(request.seen)}
        wrong = _passes(played) or (
            "" if len(side) == 2 else f"{len(side)} of 2 sub-agents sent requests to the policy"
        )
        if not wrong and played.side_calls:
            tool = next(t.name for r in played.own if (t := sub_agent_tool(r.seen.tools)))
            wrong = _untrained(played.side_calls, f'say conversations = "many" and sub_agents = ["{tool}"]')
        return [_judge(question, wrong, f"{len(side)} conversations besides the main one train")]

    async def egress(self) -> list[Finding]:
        """The addresses and interfaces that the program's own sandbox can reach."""
        port = self._bench.tap.gateway.rpartition(":")[2]
        binds = self._scaffold.black().binds() if self._scaffold.manifest.kind == ScaffoldKind.BLACK else {}
        spec = SandboxSpec(binds=binds, gateway_socket=self._bench.socket)
        async with self._bench.provider.open(spec) as sandbox:
            result = await sandbox.exec(["bash", "-c", PROBE.format(tcp=f"127.0.0.1/{port}")], timeout_s=30)
        output_lines = result.stdout.decode(errors="replace").splitlines()
        interfaces = {line.split(":")[0].strip() for line in output_lines if ":" in line and "|" not in line}
        reached = [line for line in output_lines if line.startswith("OPEN")]
        wrong = "; ".join([*reached, *(f"interface {name}" for name in sorted(interfaces - {"lo"}))])
        if "lo" not in interfaces:
            wrong = f"the probe could not look: {result.stderr.decode(errors='replace')[-300:]!r}"
        return [
            _judge(
                "no egress",
                wrong,
                "no interface but lo, no address answers; the gateway's socket is the only way out",
            )
        ]

    async def compaction(self, small: Bench) -> list[Finding]:
        """A conversation that outgrows the context. `small` has just enough context for its start."""
        question = "compaction"
        if not self._tools:
            return [
                Finding(
                    question, "n/a", "it offers no tool that runs a command: nothing makes its history grow"
                )
            ]
        largest, shrunk = 0, False

        def reply(seen: SeenRequest) -> Reply:
            nonlocal largest, shrunk
            if not shell_tool(seen.tools):
                return Reply(text="the word done has to be written into out; nothing is done yet")
            shrunk = shrunk or seen.size < largest - len(NOISE)
            largest = max(largest, seen.size)
            if not shrunk:
                return Reply(calls=[shell_call(seen.tools, NOISE)])
            return self.reply(replace(seen, turn=min(seen.turn, 1) if WRITE in seen.history else 0))

        played = await small.play(Script(reply), timeout_s=2 * self._timeout_s)
        self.played.append(played)
        if shrunk:
            wrong = _ends(played)
            if not wrong and played.side_calls:
                wrong = _untrained(
                    played.side_calls, 'say conversations = "many", and begin what follows with the summary'
                )
            return [_judge(question, wrong, f"the history was rewritten; {_how(played)}")]
        if played.failure is FailureClass.POLICY_FAILURE and played.reason == BudgetKind.TURNS:
            return [
                Finding(question, "n/a", f"its history does not fill the context in {len(played.own)} calls")
            ]
        if played.failure is FailureClass.POLICY_FAILURE and played.reason == BudgetKind.CONTEXT:
            return [
                Finding(
                    question,
                    "n/a",
                    "it does not compact: at the context's end the attempt is a policy_failure",
                )
            ]
        return [_judge(question, _ends(played), f"no compaction in {len(played.own)} calls; {_how(played)}")]

    def drift(self) -> Finding:
        """Whether every stored step of all attempts equals, id by id, the tokens sent to the rollout server and returned by it."""
        calls, wrong = drift.compare(self.played)
        return _judge("zero drift", wrong, f"{calls} calls compared")


def context_for(played: Played) -> int:
    """Tokens with room for the start of the conversation of `played`, and for limited growth."""
    return min(CONTEXT, max((row.full_len for row in played.rows), default=0) + RESERVE + GROWTH)


QUESTIONS: Sequence[tuple[str, Callable[[ScaffoldCheck], Awaitable[list[Finding]]]]] = (
    ("unknown_session", ScaffoldCheck.unknown_session),
    ("parallel_tools", ScaffoldCheck.parallel_tools),
    ("ill_formed", ScaffoldCheck.ill_formed),
    ("too_many", ScaffoldCheck.too_many),
    ("unavailable", ScaffoldCheck.unavailable),
    ("duplicate", ScaffoldCheck.duplicate),
    ("disconnect", ScaffoldCheck.disconnect),
    ("length", ScaffoldCheck.length),
    ("sub_agent", ScaffoldCheck.sub_agent),
    ("silence", ScaffoldCheck.silence),
    ("egress", ScaffoldCheck.egress),
)


def _judge(question: str, wrong: str, detail: str) -> Finding:
    return Finding(question, "FAIL", wrong) if wrong else Finding(question, "pass", detail)


def _passes(played: Played) -> str:
    """Empty when the task was done, else a description of the end."""
    return "" if played.passed else f"{_how(played)}, reward {played.reward}: {played.log[-300:]!r}"


def _ends(played: Played) -> str:
    """Empty when the attempt counts as the policy's, with any result."""
    return "" if played.failure in ENDS else _passes(played)


def _how(played: Played) -> str:
    return f"{played.failure} ({played.reason})" if played.reason else played.failure


def _untrained(side_calls: Sequence[Request], advice: str) -> str:
    """The fix for calls that are recorded as another conversation's."""
    first = side_calls[0].seen.first[:60]
    n = (
        "1 call takes a turn and does"
        if len(side_calls) == 1
        else f"{len(side_calls)} calls take turns and do"
    )
    return f"{n} not train (side_conversation), the first begins with {first!r}: {advice}"
