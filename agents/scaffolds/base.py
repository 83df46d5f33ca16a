"""The protocol of scaffolds: a scaffold turns a policy's completions into work on a task.

There are two kinds. A **white box** is Python that runs next to the runner and calls the gateway's native route through `llm`; its tools run in
the sandbox. A **black box** is any program that runs inside the sandbox and reaches only the gateway, through the Unix socket
`/run/penstock/gateway.sock`. In both cases the gateway records every completion: a scaffold cannot hide a step, and
need not know that it is being trained.

A scaffold does *not* grade, does not retry on behalf of the platform, and never sees tests. It sees the reference solution only if its manifest
says so (`scaffolds.controls`).

Responsibility for an early end: `PolicyFault` (ill-formed output, a used-up budget) is the policy's fault and is trained. Errors that the gateway,
the sandbox or the platform raises pass through unchanged and are retried. Any other exception counts as a fault of the scaffold and is retried, too.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from sandboxes.base import WORK, AnyFile, ExecResult, File, KilledBy, Sandbox
from scaffolds.mcp import McpServer
from scaffolds.observation import CHARACTERS

Message = dict[str, Any]
"""OpenAI's chat form: role, content, and where applicable reasoning_content, tool_calls, tool_call_id."""
Tool = Mapping[str, Any]
"""OpenAI's definition of a function tool."""


class ScaffoldKind(StrEnum):
    """Where a scaffold runs: `white` in the runner, through the framework's own calls; `black` as a program in the sandbox."""

    WHITE = "white"
    BLACK = "black"


Conversations = Literal["one", "many"]
"""Whether all requests of a program start with the same system prompt and first question (`Manifest`)."""
Wire = Literal["native", "chat", "responses", "anthropic"]
"""The protocol that a scaffold speaks with the gateway."""


MAX_VERSION = 128
"""Characters of a scaffold's version, which every attempt records."""


class PolicyFault(Exception):
    """Signals that the policy itself caused the attempt's end. The message is the recorded reason, a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program from a registry, pinned by a lock file with hashes or exact versions: see `scaffolds.programs`.

    `kind`: npm (`lock` is a package-lock.json, with package.json next to it) or python (a complete requirements.lock, dependencies included).
    `inside`: its read-only path in a sandbox. `licence`: terms that a person has to accept before the installation.
    """

    name: str
    kind: Literal["npm", "python"]
    lock: Path
    inside: str
    licence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The minimum that a sandbox must grant for the program itself to run. A run's own limits apply if they are larger."""

    memory_mb: int = 0
    processes: int = 0
    cpu_s: int = 0
    disk_mb: int = 0


@dataclass(frozen=True, slots=True)
class Hints:
    """Facts about a program that `penstock scaffold check` needs and cannot see from its tools.

    `finish`: a shell command by which the policy ends (for a program that accepts no plain answer). `write`: for a program without tools, a text
    that makes it write the line `done` into the file `out`.
    """

    finish: str = ""
    write: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The recorded facts about a scaffold, on every rollout. `sha` is the hex sha256 of its own source files.

    `auxiliary` are rules for calls that are not the policy's work: titles, summaries, memories. `*-small` is a pattern of model names,
    `text:*title generator*` one of the conversation's first message. Such calls are recorded and have train weight 0. `timeout_s` bounds a
    black box in addition to the task's own limit; None leaves it to the task. `replayable`: if it runs again from its beginning and receives the same
    completions, it makes the same requests. Then an attempt whose runner died continues from its recorded steps. `conversations`: "one" means that
    every request starts with the same system prompt and first question. A request that starts differently comes from elsewhere (a command of the
    policy, which finds the token in the program's environment) and does not train. "many": sub-agents, new
    conversations after a summary. They train if their beginning contains the words for a sub-agent (a call of a tool that matches a pattern in
    `sub_agents`) or a reply without calls, or if they continue a known conversation. `solution`: it gets the task's reference solution. `trains`: its
    rollouts may train; only evaluations run the others. `mcp`: its program is given the task's MCP servers. `skills`: the
    absolute directory inside from which its program reads skills; empty: it knows none. `env`: the variables of its program that replace the task's.
    """

    name: str
    version: str
    kind: ScaffoldKind
    wire: Wire
    sha: str
    auxiliary: tuple[str, ...] = ()
    timeout_s: float | None = None
    program: Program | None = None
    needs: Needs = field(default_factory=Needs)
    check: Hints = field(default_factory=Hints)
    replayable: bool = False
    conversations: Conversations = "one"
    sub_agents: tuple[str, ...] = ()
    solution: bool = False
    trains: bool = True
    mcp: bool = False
    skills: str = ""
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.version) > MAX_VERSION:
            raise ValueError(
                f"the version of scaffold {self.name} has {len(self.version)} characters: write at most {MAX_VERSION}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The reference solution of a task: files, links and directories (`modes`) by absolute path below /solution, the command that runs it (its last
    word is the script's path inside) and its variables."""

    files: Mapping[str, AnyFile] = field(repr=False)
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The part of its task that a scaffold may know: the instruction, and the location of the files. `solution`: None, unless the manifest asks
    for it. `mcp_servers`: empty, unless the manifest takes them."""

    name: str
    domain: str
    instruction: str
    work_dir: str = WORK
    solution: Solution | None = None
    mcp_servers: tuple[McpServer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """Budgets of one attempt. `turns` counts completions of all its agents together; the gateway enforces it as well. `observation_characters` and
    `observation_lines`: how much of a command's output its policy sees (`scaffolds.observation.observe`)."""

    turns: int
    context: int  # tokens: the longest state + action
    tool_timeout_s: float
    timeout_s: float
    observation_characters: int = CHARACTERS
    observation_lines: int = 0  # 0: no such limit


class ToolCall(Protocol):
    """A parsed tool call. `id` must be replayed as `tool_call_id`; the policy generates the mapping `arguments`."""

    @property
    def id(self) -> str:
        """The id of the call, to replay as `tool_call_id`."""
        ...

    @property
    def name(self) -> str:
        """The name of the tool."""
        ...

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that the policy generated, by name."""
        ...


class Completion(Protocol):
    """One recorded step. `finish`: stop | length | tool_calls; `parse`: ok | ill_formed; `step`: its index in the attempt."""

    @property
    def content(self) -> str:
        """The text of the reply, without reasoning and calls."""
        ...

    @property
    def reasoning(self) -> str | None:
        """The reasoning, where the chat format separates it; None without any."""
        ...

    @property
    def tool_calls(self) -> Sequence[ToolCall]:
        """The parsed tool calls, in their order in the reply."""
        ...

    @property
    def finish(self) -> str:
        """The end of the action: stop | length | tool_calls."""
        ...

    @property
    def parse(self) -> str:
        """Whether the reply has the form of the chat format: ok | ill_formed."""
        ...

    @property
    def step(self) -> int:
        """The index of the step in the attempt."""
        ...

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
        """One completion of the whole history `messages`. Its exceptions are for the platform: do not catch them.

        If the run configures context management for this scaffold, a shorter history may be sent instead. Continue to append to
        your own (`scaffolds.context`).
        """
        ...


class ToolTimer(Protocol):
    """The open record of one tool execution."""

    def ended(self, exit_code: int | None, output_bytes: int) -> None:
        """Report how the tool ended. Without this call only its duration is recorded."""
        ...


class Context(Protocol):
    """A white box's interface to the framework: facts that completions alone do not show."""

    @property
    def agent(self) -> str:
        """`main`, or the path of a sub-agent, as recorded on its steps."""
        ...

    @property
    def limits(self) -> AgentLimits:
        """The budgets of the attempt."""
        ...

    def replace(self, messages: Sequence[Message], reason: str) -> list[Message]:
        """Context management: set the history to `messages`, because of `reason`. Returns it as a new list.

        The agent's next completion is recorded as `rewrites` with this reason, so that its exact state can be rebuilt.
        """
        ...

    def spawn(self, name: str) -> "Agent":
        """A sub-agent with its own history. It shares the attempt's budgets, clocks, sandbox and rewards.

        Its steps carry its path, `main/<name>`, with a number if a name repeats. Agents may work at the same time. ValueError unless a
        name has 1 to 32 letters, digits, `_`, `.` and `-`, and a path at most 64 characters.
        """
        ...

    def tool_call(self, reply: Completion, call: int, name: str) -> AbstractContextManager[ToolTimer]:
        """Time the execution of `reply.tool_calls[call]`; recorded even if the block raises."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """The result of `spawn`."""

    llm: Llm
    ctx: Context


@runtime_checkable
class WhiteBox(Protocol):
    """A scaffold in Python. One object serves one attempt."""

    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        """Work on the task; returns the final answer. Raises PolicyFault if the policy causes an early end."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How a program inside the sandbox reaches its session: HTTP over `socket`, below `base_url`, with `token` as API key.

    The host part of `base_url` is ignored. Its path names the session, so a client that cannot send a key is served as well.
    """

    base_url: str = field(repr=False)
    token: str = field(repr=False)
    socket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program to start inside the sandbox; `cwd` None: in the task's work directory."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """How a black box failed: `policy` (trained), `timeout`, or `infra`. `reason` in a few words.

    `infra` is retried only if the policy cannot have caused it: before the first completion reached the program, or when the runner
    itself saw the gateway fail. Otherwise it counts as the policy's fault, whose commands may end the program. Likewise a `timeout` counts
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
        """The command to run first, once per attempt. Any exit code but 0 is an infrastructure failure."""
        ...

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        """The program itself."""
        ...

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        """The final message, read from the program's own place for it; None without one."""
        ...

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        """Whether and how the program failed. Not called for timeouts and stalls of the attempt."""
        ...

    async def on_abort(self, sandbox: Sandbox) -> None:
        """Called when the attempt ends early, before the sandbox closes; bounded by a few seconds."""
        ...


@runtime_checkable
class Harvests(Protocol):
    """A black box whose `harvest` reads files. One sandbox serves all steps of a task, so an earlier step may have left them."""

    def harvested(self) -> Sequence[str]:
        """Absolute paths of these files, or patterns of the shell. Those outside the work directory are removed before each later launch."""
        ...


class BlackBoxDefaults:
    """Defaults for most programs: no files or installation, stdout's last line as the answer, exit 0 as success."""

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        """No files."""
        return {}

    def binds(self) -> Mapping[Path, str]:
        """Nothing of the host."""
        return {}

    def install(self) -> Launch | None:
        """No installation."""
        return None

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        """The last line that the program printed; None if it printed nothing, or more than a sandbox keeps."""
        if ended.stdout_cut:
            return None
        lines = ended.stdout.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        """No fault after exit code 0; `timeout` if the program's own time ended, else `infra`."""
        if ended.timed_out:
            return Fault("timeout", "the scaffold's own time limit ended")
        if ended.killed_by is not KilledBy.NONE:
            return Fault("infra", f"limit of {ended.killed_by.value} reached")
        return None if ended.ok else Fault("infra", f"the program ended with exit code {ended.exit_code}")

    async def on_abort(self, sandbox: Sandbox) -> None:
        """Nothing to do: the sandbox ends all processes."""
        return None


@dataclass(frozen=True, slots=True)
class Scaffold:
    """One scaffold, in either form of declaration: its recorded facts, and the builder of its object for an attempt."""

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
    """Creates the object for one attempt."""

    def __call__(self) -> WhiteBox | BlackBox: ...
