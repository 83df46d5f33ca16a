"""A scaffold without Python: a `scaffold.toml`, with the files that it places next to it.

    name = "echo"
    version = "1"
    wire = "chat"                       # chat | responses | anthropic
    argv = ["/usr/bin/python3", "/home/agent/run.py"]
    stdin = "{task.instruction}"        # optional
    install = []                        # optional: run first, inside
    timeout_s = 120                     # optional
    harvest = ["/logs/answer*.txt"]     # the first file that exists holds the final message; an earlier step's is removed
    answer = "last line"                # without harvest: "last line" of stdout, all of "stdout", or "none"; none above 1 MiB
    auxiliary = ["*-small", "text:*write a title*"]   # calls that do not train: by model name, by the first message
    policy_exit_codes = [3]             # the policy's fault from the first call on
    tcp = true                          # gateway.base_url is reached over 127.0.0.1; false: over the socket only
    conversations = "one"               # "many": sub-agents, or new conversations after a summary, which then train as well
    sub_agents = ["task"]               # with "many": tools whose calls start a conversation, by name patterns
    skills = "/home/agent/.echo/skills" # optional: where the program reads skills, which a task may bring
    replayable = false                  # true: with the same completions it makes the same requests (`scaffolds.base.Manifest`)

    [env]
    OPENAI_BASE_URL = "{gateway.base_url}"
    OPENAI_API_KEY = "{gateway.token}"

    [files]                             # absolute path inside → file next to scaffold.toml, placeholders filled in
    "/home/agent/run.py" = "run.py"

    [program]                           # optional: from a registry, by `penstock scaffold install`
    npm = "package-lock.json"           # or python = "requirements.lock"
    inside = "/opt/echo"
    licence = ""                        # terms that a person has to accept first

    [mcp]                               # optional: the program is given the task's MCP servers
    file = "/home/agent/.echo.json"     # one of [files]
    style = "mcpServers"                # or codex, opencode (scaffolds.mcp)

    [needs]                             # optional: the minimum that the program itself needs
    memory_mb = 1024                    # and processes, cpu_s, disk_mb

    [check]                             # optional, for `penstock scaffold check`
    finish = ""                         # a shell command by which the policy ends, if a plain answer does not
    write = ""                          # for a program without tools: a reply that makes it write the line `done` into the file `out`

Placeholders: gateway.base_url (ends in /v1), gateway.root_url (the same without /v1), gateway.token, gateway.socket, task.instruction, task.name,
task.domain, task.work_dir, limits.turns, limits.context, limits.tool_timeout_s, limits.timeout_s,
limits.observation_characters, limits.observation_lines. In argv, stdin and [env], a near misspelling of one of them is refused.
Every other pair of braces is unchanged.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from sandboxes.base import ExecResult, File, PathRefused, Sandbox
from sandboxes.text_files import is_script, read_toml, script_of
from scaffolds.base import (
    AgentLimits,
    BlackBoxDefaults,
    Conversations,
    Endpoint,
    Fault,
    Hints,
    Launch,
    Manifest,
    Needs,
    Program,
    Scaffold,
    ScaffoldKind,
    TaskView,
    Wire,
)
from scaffolds.declare import checked_name, source_sha
from scaffolds.mcp import McpFile, McpStyle, with_servers
from scaffolds.programs import binds_of
from scaffolds.tcp import Tcp

TOML = "scaffold.toml"

_OF_TASK = ("name", "domain", "instruction", "work_dir")
_PLACEHOLDER = re.compile(r"\{(gateway|task|limits)\.([a-z_]+)\}")
_BRACES = re.compile(r"\{(\w+\.\w+)\}")
_KNOWN = (
    *(f"gateway.{name}" for name in (*Endpoint.__dataclass_fields__, "root_url")),
    *(f"task.{name}" for name in _OF_TASK),
    *(f"limits.{name}" for name in AgentLimits.__dataclass_fields__),
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NEARLY = 0.8  # similarity of a misspelt placeholder to the intended one, of 1
_NEEDS = tuple(Needs.__dataclass_fields__)
_HINTS = tuple(Hints.__dataclass_fields__)
YEAR = 366 * 86400.0
_VERSION_PATH = "/v1"
_MATCHES = 'IFS=; shopt -s nullglob; for path in $1; do printf "%s\\0" "$path"; done'

Answer = Literal["last line", "stdout", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """The content of a `scaffold.toml`, checked."""

    argv: tuple[str, ...]
    install: tuple[str, ...]
    stdin: str | None
    env: Mapping[str, str]
    files: Mapping[str, File]
    harvest: tuple[str, ...]
    answer: Answer
    policy_exit_codes: frozenset[int]
    tcp: bool
    program: Program | None
    mcp: McpFile | None


class TomlBlackBox(BlackBoxDefaults):
    """A black box declared by a `scaffold.toml`."""

    def __init__(self, declared: _Declared) -> None:
        self._declared = declared
        self._tcp = Tcp() if declared.tcp else None

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        fill = self._filler(task, gateway, limits)
        tcp_files = self._tcp.files() if self._tcp else {}
        placed = {
            path: replace(file, data=_fill_bytes(file.data, fill))
            for path, file in self._declared.files.items()
        }
        if (mcp := self._declared.mcp) is not None:
            config = placed[mcp.path]
            placed[mcp.path] = replace(config, data=with_servers(config.data, mcp.style, task.mcp_servers))
        return {**tcp_files, **placed}

    def binds(self) -> Mapping[Path, str]:
        return binds_of(self._declared.program) if self._declared.program else {}

    def install(self) -> Launch | None:
        return Launch(argv=self._declared.install) if self._declared.install else None

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        declared, fill = self._declared, self._filler(task, gateway, limits)
        argv = [fill(part) for part in declared.argv]
        if self._tcp:
            argv = self._tcp.argv(gateway, argv)
        env = {key: fill(value) for key, value in declared.env.items()}
        stdin = None if declared.stdin is None else fill(declared.stdin).encode(errors="replace")
        return Launch(argv=argv, env=env, stdin=stdin)

    def harvested(self) -> Sequence[str]:
        return self._declared.harvest

    async def harvest(self, sandbox: Sandbox, ended: ExecResult) -> str | None:
        for pattern in self._declared.harvest:
            found = await sandbox.exec(["bash", "-c", _MATCHES, "bash", sandbox.path(pattern)], timeout_s=10)
            for path in sorted(map(os.fsdecode, found.stdout.split(b"\0")[:-1])):
                inside = pattern.rpartition("/")[0] + "/" + path.rpartition("/")[2]
                try:
                    return (await sandbox.get(inside)).decode(errors="replace")
                except (FileNotFoundError, PathRefused, ValueError):
                    continue
        if self._declared.harvest or self._declared.answer == "none" or ended.stdout_cut:
            return None
        if self._declared.answer == "stdout":
            return ended.stdout.decode(errors="replace").strip() or None
        return await super().harvest(sandbox, ended)

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        if ended.exit_code in self._declared.policy_exit_codes:
            return Fault("policy", f"the program ended with exit code {ended.exit_code}")
        return super().classify(ended, answer)

    def _filler(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Callable[[str], str]:
        url = self._tcp.base_url(gateway) if self._tcp else gateway.base_url
        urls = {"base_url": url, "root_url": url.removesuffix(_VERSION_PATH)}
        values = {
            "gateway": asdict(gateway) | urls,
            "task": {name: getattr(task, name) for name in _OF_TASK},
            "limits": asdict(limits),
        }

        def value_of(match: re.Match[str]) -> str:
            return str(values[match[1]].get(match[2], match[0]))

        return lambda text: _PLACEHOLDER.sub(value_of, text)


def from_toml(path: Path) -> Scaffold:
    """Read a manifest. ValueError, one sentence, names the file and the key."""
    try:
        table = read_toml(path)
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error
    reader = _Reader(path, table)
    wire = reader.text("wire", "chat")
    if wire not in get_args(Wire) or wire == "native":
        raise ValueError(f"{path}: wire must be chat, responses or anthropic, got {wire!r}")
    name = reader.text("name")
    try:
        checked_name(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    declared = _declared(path, reader, name)
    manifest = Manifest(
        name=name,
        version=reader.text("version"),
        kind=ScaffoldKind.BLACK,
        wire=wire,
        sha=source_sha(path.parent),
        auxiliary=reader.texts("auxiliary"),
        timeout_s=reader.seconds("timeout_s"),
        program=declared.program,
        needs=reader.needs(),
        check=reader.hints(),
        replayable=reader.flag("replayable", False),
        conversations=reader.one_of("conversations", get_args(Conversations)),
        sub_agents=reader.texts("sub_agents"),
        mcp=declared.mcp is not None,
        skills=reader.directory("skills"),
        env=tuple(declared.env),
    )
    if manifest.sub_agents and manifest.conversations == "one":
        raise ValueError(
            f'{path}: sub_agents needs conversations = "many": a scaffold of one conversation has none'
        )
    if table:
        raise ValueError(f"{path}: {sorted(table)[0]} is not a known key")
    return Scaffold(manifest, partial(TomlBlackBox, declared))


def _declared(path: Path, reader: "_Reader", name: str) -> _Declared:
    """How the program is installed, started and read."""
    argv = reader.texts("argv")
    if not argv:
        raise ValueError(f"{path}: argv must name the program to start")
    stdin = reader.optional_text("stdin")
    env = reader.table("env")
    for key, texts in (("argv", argv), ("stdin", [stdin or ""]), ("[env]", env.values())):
        _check_placeholders(path, key, texts)
    answer = reader.optional_one_of("answer", get_args(Answer))
    install, harvest, files = reader.texts("install"), reader.texts("harvest"), reader.files()
    texts_by_key = {
        "argv": argv,
        "stdin": [stdin or ""],
        "install": install,
        "harvest": harvest,
        "[env]": env.values(),
    }
    _check_startable(path, texts_by_key, env, files)
    if harvest and answer not in (None, "none"):
        raise ValueError(f"{path}: answer has no effect next to harvest: remove one of them")
    return _Declared(
        argv=argv,
        install=install,
        stdin=stdin,
        env=env,
        files=files,
        harvest=harvest,
        answer=answer or get_args(Answer)[0],
        policy_exit_codes=reader.codes("policy_exit_codes"),
        tcp=reader.flag("tcp", True),
        program=reader.program(name),
        mcp=reader.mcp(files),
    )


def _check_startable(
    path: Path, held: Mapping[str, Iterable[str]], env: Iterable[str], files: Iterable[str]
) -> None:
    """Raise ValueError for arguments that cannot start a program: they would fail every attempt."""
    for key, texts in held.items():
        if any("\0" in text for text in texts):
            raise ValueError(f"{path}: {key} has a NUL character, which no program can be given")
    for name in env:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"{path}: [env]: {name!r:.80} is not a valid environment variable name; use letters, digits, _, . and -, and no digit first"
            )
    for name in files:
        if not _is_inside(name):
            raise ValueError(
                f"{path}: [files] has {name!r:.80}: write the absolute path inside the sandbox, without .."
            )


def _is_inside(path: str) -> bool:
    """Whether a path inside the sandbox is absolute and written without detours."""
    return path.startswith("/") and "\0" not in path and ".." not in path.split("/")


def _check_placeholders(path: Path, key: str, texts: Iterable[str]) -> None:
    """Raise ValueError for a misspelt placeholder: the program would receive the braces and fail without a visible reason."""
    for text in texts:
        for name in _BRACES.findall(text):
            if name in _KNOWN:
                continue
            nearest = get_close_matches(name, _KNOWN, 1, _NEARLY)
            if nearest or _PLACEHOLDER.fullmatch(f"{{{name}}}"):
                hint = f"did you mean {{{nearest[0]}}}?" if nearest else f"known: {', '.join(_KNOWN)}"
                raise ValueError(f"{path}: {key} has the unknown placeholder {{{name}}}; {hint}")


class _Reader:
    """Takes keys out of a table and checks each. Remaining keys are unknown."""

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self._path = path
        self._table = table

    def _wrong(self, key: str, must_be: str, got: object) -> ValueError:
        return ValueError(f"{self._path}: {key} must be {must_be}, got {got!r}")

    def text(self, key: str, default: str | None = None) -> Any:
        value = self._table.pop(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text", value)
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if key in self._table else None

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts", value)
        return tuple(value)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> Any:
        """One of `allowed`; the first is the default."""
        value = self._table.pop(key, allowed[0])
        if value not in allowed:
            raise self._wrong(key, f"one of {', '.join(allowed)}", value)
        return value

    def optional_one_of(self, key: str, allowed: tuple[str, ...]) -> Any:
        """One of `allowed`; None: the table does not have the key."""
        return self.one_of(key, allowed) if key in self._table else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._table.pop(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def seconds(self, key: str) -> float | None:
        value = self._table.pop(key, None)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= YEAR
        ):
            raise self._wrong(key, "a number of seconds above 0, at most a year's", value)
        return value

    def codes(self, key: str) -> frozenset[int]:
        value = self._table.pop(key, [])
        if not isinstance(value, list) or not all(type(code) is int for code in value):
            raise self._wrong(key, "a list of whole numbers", value)
        return frozenset(value)

    def table(self, key: str) -> dict[str, str]:
        value = self._table.pop(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ValueError(f"{self._path}: [{key}] must hold texts, got {value!r}")
        return value

    def files(self) -> dict[str, File]:
        found = {}
        for inside, relative in self.table("files").items():
            source = self._path.parent / relative
            try:
                body = source.read_bytes()
                body = script_of(body, str(source)) if is_script(body) else body
                found[inside] = File(body, 0o755 if source.stat().st_mode & 0o100 else 0o644)
            except (OSError, ValueError) as error:
                raise ValueError(f"{self._path}: [files] {inside}: {error}") from error
        return found

    def program(self, name: str) -> Program | None:
        if "program" not in self._table:
            return None
        table = self.table("program")
        kinds = [kind for kind in ("npm", "python") if kind in table]
        if (
            len(kinds) != 1
            or not _is_inside(table.get("inside", ""))
            or set(table) - {"npm", "python", "inside", "licence"}
        ):
            raise ValueError(
                f"{self._path}: [program] must hold npm or python (a lock file), inside (an absolute path without ..) and at most licence"
            )
        lock = (self._path.parent / table[kinds[0]]).resolve()
        if not lock.is_file():
            raise ValueError(f"{self._path}: [program] {kinds[0]}: {lock} does not exist")
        # It is named after the directory: several manifests of one directory share one program.
        kind: Literal["npm", "python"] = "npm" if kinds == ["npm"] else "python"
        return Program(
            name=lock.parent.name,
            kind=kind,
            lock=lock,
            inside=table["inside"],
            licence=table.get("licence", ""),
        )

    def mcp(self, files: Mapping[str, File]) -> McpFile | None:
        if "mcp" not in self._table:
            return None
        table = self.table("mcp")
        path, style = table.get("file", ""), table.get("style", "")
        if set(table) != {"file", "style"} or path not in files or style not in get_args(McpStyle):
            raise ValueError(
                f"{self._path}: [mcp] must hold file (one of [files]) and style ({', '.join(get_args(McpStyle))})"
            )
        return McpFile(path, style)  # type: ignore[arg-type]

    def directory(self, key: str) -> str:
        value = self._table.pop(key, "")
        if not isinstance(value, str) or (
            value and not (value.startswith("/home/agent/") and _is_inside(value))
        ):
            raise self._wrong(key, "a directory below /home/agent, without ..", value)
        return value

    def needs(self) -> Needs:
        table = self._table.pop("needs", {})
        if (
            not isinstance(table, dict)
            or set(table) - set(_NEEDS)
            or not all(type(v) is int and 0 <= v < 2**31 for v in table.values())
        ):
            raise ValueError(
                f"{self._path}: [needs] must hold whole numbers from 0 on for {', '.join(_NEEDS)}"
            )
        return Needs(**table)

    def hints(self) -> Hints:
        table = self.table("check")
        if unknown := sorted(set(table) - set(_HINTS)):
            raise ValueError(
                f"{self._path}: [check] {unknown[0]} is not a known key; known: {', '.join(_HINTS)}"
            )
        return Hints(**table)


def _fill_bytes(body: bytes, fill: Callable[[str], str]) -> bytes:
    try:
        return fill(body.decode()).encode()
    except UnicodeDecodeError:  # not text: it has no placeholders
        return body
