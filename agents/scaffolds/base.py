"""The protocol of scaffolds: what turns a policy's completions into work on a task.

Two kinds. A **white box** is Python that runs beside the runner and calls the gateway's native route through `llm`; its tools run in
the sandbox. A **black box** is any program that runs inside the sandbox and reaches the gateway through the Unix socket
`/run/penstock/gateway.sock`, and nothing else. Either way the gateway records every completion: a scaffold cannot hide a step, and
need not know that it is being trained.

What a scaffold is *not*: it does not grade, it does not retry on behalf of the platform, and it never sees tests or solutions.

Whose fault an early end is: `PolicyFault` (the policy's: ill-formed output, a used-up budget) is trained; what the gateway, the sandbox or
the platform raise passes through untouched and is retried; any other exception counts as a fault of the scaffold and is retried, too.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sandboxes.base import WORK, ExecResult, File, KilledBy, Sandbox

Message = dict[str, Any]
"""OpenAI's chat form: role, content, and where they apply reasoning_content, tool_calls, tool_call_id."""
Tool = Mapping[str, Any]
"""OpenAI's definition of a function tool."""

Kind = Literal["white", "black"]
Wire = Literal["native", "chat", "responses", "anthropic"]


class PolicyFault(Exception):
    """Signals that the episode ends by the policy's own doing. The message is the recorded reason, a few words."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program from a registry, pinned by a lock file with hashes or exact versions: see `scaffolds.programs`.

    `kind`: npm (`lock` is a package-lock.json, package.json beside it) or python (a requirements.lock without dependencies left out).
    `inside`: where a sandbox sees it, read-only. `licence`: terms that a person has to accept before it is installed.
    """

    name: str
    kind: Literal["npm", "python"]
    lock: Path
    inside: str
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """The least that a sandbox must grant for the program itself to run; a run's own limits count where they are larger."""

    memory_mb: int = 0
    processes: int = 0
    cpu_s: int = 0
    disk_mb: int = 0


@dataclass(frozen=True, slots=True)
class Hints:
    """What `penstock scaffold check` has to know of a program that cannot be seen from the tools that it offers.

    `finish`: a shell command by which the policy ends (a program that takes no plain answer). `write`: for a program without tools, a text
    that makes it write the line `done` into the file `out`.
    """

    finish: str = ""
    write: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is recorded about a scaffold on every rollout. `sha` is the hex sha256 of its own source files.

    `auxiliary` are rules for calls that are not the policy's work: titles, summaries, memories. `*-small` is a pattern of model names,
    `text:*title generator*` one of the conversation's first message. Such calls are recorded and carry train weight 0. `timeout_s` bounds a
    black box beside the task's own limit; None leaves it to the task. `replayable`: run again from its beginning, and given the same
    completions, it asks for the same ones; then an attempt whose runner died goes on from its recorded steps.
    """

    name: str
    version: str
    kind: Kind
    wire: Wire
    sha: str
    auxiliary: tuple[str, ...] = ()
    timeout_s: float | None = None
    program: Program | None = None
    needs: Needs = field(default_factory=Needs)
    check: Hints = field(default_factory=Hints)
    replayable: bool = False


@dataclass(frozen=True, slots=True)
class TaskView:
    """What a scaffold may know of its task: the instruction, and where the files are."""

    name: str
    domain: str
    instruction: str
    work_dir: str = WORK


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Budgets of one attempt. `turns` counts completions of all its agents together; the gateway enforces it as well."""

    turns: int
    context: int  # tokens: the longest state + action
    tool_timeout_s: float
    timeout_s: float


class ToolCall(Protocol):
    """A parsed tool call. `id` is to be replayed as `tool_call_id`; `arguments` is a mapping of the policy's making."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> dict[str, Any]: ...


class Completion(Protocol):
    """One recorded step. `finish`: stop | length | tool_calls; `parse`: ok | ill_formed; `step`: its index in the attempt."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str | None: ...
    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...
    @property
    def finish(self) -> str: ...
    @property
    def parse(self) -> str: ...
    @property
    def step(self) -> int: ...

    def message(self) -> Message:
        """The assistant message to append to the history, reasoning included."""
        ...


class Llm(Protocol):
    """The policy, as one agent of the attempt sees it."""

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """One completion of the whole history `messages`. What it raises is the platform's word: let it pass.

        Where the run configures context management for this scaffold, a shorter history may be sent in its place: go on appending to
        your own (`scaffolds.context`).
        """
        ...


class ToolTimer(Protocol):
    """The open record of one tool execution."""

    def ended(self, exit_code: int | None, output_bytes: int) -> None:
        """Say how the tool ended; without it only its duration is recorded."""
        ...


class Context(Protocol):
    """The framework's hand in a white box: what cannot be seen from completions alone."""

    @property
    def agent(self) -> str:
        """`main`, or the path of a sub-agent, as recorded on its steps."""
        ...

    @property
    def limits(self) -> AgentLimits: ...

    def replace(self, messages: Sequence[Message], reason: str) -> list[Message]:
        """Context management: the history is `messages` from now on, because of `reason`. Returns it as a new list.

        The agent's next completion is recorded as `rewrites` with this reason, so that its exact state can be rebuilt.
        """
        ...

    def spawn(self, name: str) -> "Agent":
        """A sub-agent with a history of its own; it shares the attempt's budgets, clocks, sandbox and rewards.

        Its steps carry its path, `main/<name>`, numbered where a name comes again. Agents may work at the same time. ValueError for a
        name of other than 1 to 32 letters, digits, `_`, `.` and `-`, and for a path of more than 64 characters.
        """
        ...

    def tool_call(self, reply: Completion, call: int, name: str) -> AbstractContextManager[ToolTimer]:
        """Time the execution of `reply.tool_calls[call]`; recorded even if the block raises."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """What `spawn` returns."""

    llm: Llm
    ctx: Context


@runtime_checkable
class WhiteBox(Protocol):
    """A scaffold in Python. One object serves one attempt."""

    async def run(self, task: TaskView, llm: Llm, box: Sandbox, ctx: Context) -> str:
        """Work on the task; returns the final answer. Raises PolicyFault for an early end of the policy's doing."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a program inside the sandbox reaches its session: HTTP over `socket`, below `base_url`, with `token` as API key.

    The host part of `base_url` means nothing; its path names the session, so a client that cannot send a key is served as well.
    """

    base_url: str = field(repr=False)
    token: str = field(repr=False)
    socket: str


@dataclass(frozen=True, slots=True)
class Launch:
    """A program to start inside the sandbox; `cwd` None: in the task's work directory."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """How a black box failed: `policy` (trained), `timeout`, or `infra`. `reason` in a few words.

    `infra` is retried only if the policy cannot have brought it about: before the first completion reached the program, or when the runner
    itself saw the gateway fail. Otherwise it counts as the policy's doing, whose commands may end the program. Likewise a `timeout` counts
    only when the time was used up.
    """

    kind: Literal["policy", "timeout", "infra"]
    reason: str


@runtime_checkable
class BlackBox(Protocol):
    """A scaffold that is a program. One object serves one attempt. `BlackBoxDefaults` implements all but `launch`."""

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        """Absolute path inside → file, placed before anything runs; below `/app` they do not count as the agent's work."""
        ...

    def binds(self) -> Mapping[Path, str]:
        """Host path → absolute path inside, read-only: the program's own environment."""
        ...

    def install(self) -> Launch | None:
        """What to run first, once per attempt; anything but exit 0 is an infrastructure failure."""
        ...

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        """The program itself."""
        ...

    async def harvest(self, box: Sandbox, ended: ExecResult) -> str | None:
        """The final message, from wherever the program leaves it; None: there is none."""
        ...

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        """Whether and how the program failed. Timeouts and stalls of the attempt are not asked about."""
        ...

    async def on_abort(self, box: Sandbox) -> None:
        """Called when the attempt ends early, before the sandbox goes; bounded by a few seconds."""
        ...


class BlackBoxDefaults:
    """What most programs need: nothing to place or install, stdout's last line as the answer, exit 0 means success."""

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        return {}

    def binds(self) -> Mapping[Path, str]:
        return {}

    def install(self) -> Launch | None:
        return None

    async def harvest(self, box: Sandbox, ended: ExecResult) -> str | None:
        lines = ended.stdout.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        if ended.timed_out:
            return Fault("timeout", "the scaffold's own time limit ended")
        if ended.killed_by is not KilledBy.NONE:
            return Fault("infra", f"limit of {ended.killed_by.value} reached")
        return None if ended.ok else Fault("infra", f"the program ended with exit code {ended.exit_code}")

    async def on_abort(self, box: Sandbox) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Scaffold:
    """One scaffold, whichever way it was declared: what is recorded of it, and how an attempt gets its object."""

    manifest: Manifest
    build: "type[WhiteBox] | type[BlackBox] | Builder"

    def white(self) -> WhiteBox:
        """A fresh white box. Only for `manifest.kind == "white"`."""
        built = self.build()
        assert isinstance(built, WhiteBox)
        return built

    def black(self) -> BlackBox:
        """A fresh black box. Only for `manifest.kind == "black"`."""
        built = self.build()
        assert isinstance(built, BlackBox)
        return built


class Builder(Protocol):
    """Makes the object for one attempt."""

    def __call__(self) -> WhiteBox | BlackBox: ...
