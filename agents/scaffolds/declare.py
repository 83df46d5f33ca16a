"""Two ways to declare a scaffold, one result.

A class with a decorator::

    @scaffold(name="shell", version="1")
    class Shell:
        async def run(self, task, llm, box, ctx): ...

or a directory with a `scaffold.toml`, no Python::

    name = "echo"
    version = "1"
    wire = "chat"                       # chat | responses | anthropic
    argv = ["/usr/bin/python3", "/home/agent/run.py", "{gateway.socket}"]
    install = []                        # optional: run first
    timeout_s = 120                     # optional
    harvest = ["/logs/answer*.txt"]     # the first file that exists holds the final message; else stdout's last line
    auxiliary = ["*-mini"]              # calls to these models do not train
    policy_exit_codes = [3]             # the policy's fault, not the platform's

    [env]
    OPENAI_BASE_URL = "{gateway.base_url}"
    OPENAI_API_KEY = "{gateway.token}"

    [files]                             # absolute path inside → file beside scaffold.toml, placeholders filled in
    "/home/agent/run.py" = "run.py"

Placeholders: gateway.base_url, gateway.token, gateway.socket, task.instruction, task.name, task.domain, limits.turns, limits.context,
limits.timeout_s. Every other pair of braces is left alone.
"""

import hashlib
import inspect
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from sandboxes.base import ExecResult, File, PathRefused, Sandbox
from scaffolds.base import (
    AgentLimits,
    BlackBox,
    BlackBoxDefaults,
    Endpoint,
    Fault,
    Launch,
    Manifest,
    Scaffold,
    TaskView,
    WhiteBox,
    Wire,
)

ATTRIBUTE = "__scaffold__"
TOML = "scaffold.toml"
_PLACEHOLDER = re.compile(r"\{(gateway|task|limits)\.([a-z_]+)\}")
_NAME = re.compile(r"[a-z0-9_-]{1,32}")

C = TypeVar("C", bound=type)


def scaffold(
    *,
    name: str,
    version: str,
    wire: Wire = "native",
    auxiliary: tuple[str, ...] = (),
    timeout_s: float | None = None,
) -> Callable[[C], C]:
    """Declare a class as a scaffold: a white box if it has `run`, a black box if it has `launch`."""

    def declare(cls: C) -> C:
        kind = "white" if issubclass(cls, WhiteBox) else "black" if issubclass(cls, BlackBox) else None
        if kind is None:
            raise ValueError(
                f"scaffold {cls.__name__}: a white box needs `run`, a black box `launch` (derive it from BlackBoxDefaults)"
            )
        if (kind == "white") != (wire == "native"):
            raise ValueError(
                f"scaffold {cls.__name__}: a white box speaks the wire native, a black box another one"
            )
        source = Path(inspect.getfile(cls))
        root = source.parent if source.name == "__init__.py" else source
        manifest = Manifest(
            _checked(name), version, "white" if kind == "white" else "black", wire, source_sha(root), auxiliary, timeout_s
        )  # fmt: skip
        setattr(cls, ATTRIBUTE, Scaffold(manifest, cls))
        return cls

    return declare


def source_sha(root: Path) -> str:
    """Hex sha256 over a file, or over every file of a directory (byte code apart) with its relative path, in order."""
    digest = hashlib.sha256()
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    for path in files:
        if "__pycache__" in path.parts:
            continue
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        for part in (name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Program:
    """The content of a `scaffold.toml`, checked."""

    argv: tuple[str, ...]
    install: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, bytes]
    harvest: tuple[str, ...]
    policy_exit_codes: frozenset[int]


class TomlBlackBox(BlackBoxDefaults):
    """A black box declared by a `scaffold.toml`."""

    def __init__(self, program: _Program) -> None:
        self._program = program

    def files(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Mapping[str, File]:
        fill = _filler(task, gateway, limits)
        return {path: File(_fill_bytes(body, fill)) for path, body in self._program.files.items()}

    def install(self) -> Launch | None:
        return Launch(self._program.install) if self._program.install else None

    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        fill = _filler(task, gateway, limits)
        env = {key: fill(value) for key, value in self._program.env.items()}
        return Launch([fill(part) for part in self._program.argv], env)

    async def harvest(self, box: Sandbox, ended: ExecResult) -> str | None:
        for pattern in self._program.harvest:
            found = await box.exec(["bash", "-c", 'compgen -G "$1"', "bash", box.path(pattern)], timeout_s=10)
            for path in sorted(found.stdout.decode(errors="replace").splitlines()):
                inside = pattern.rpartition("/")[0] + "/" + path.rpartition("/")[2]
                try:
                    return (await box.get(inside)).decode(errors="replace")
                except (FileNotFoundError, PathRefused, ValueError):
                    continue
        return await super().harvest(box, ended) if not self._program.harvest else None

    def classify(self, ended: ExecResult, answer: str | None) -> Fault | None:
        if ended.exit_code in self._program.policy_exit_codes:
            return Fault("policy", f"the scaffold ended with exit code {ended.exit_code}")
        return super().classify(ended, answer)


def from_toml(path: Path) -> Scaffold:
    """Read a `scaffold.toml`. ValueError, one sentence, names the file and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    reader = _Reader(path, table)
    wire = reader.text("wire", "chat")
    if wire not in get_args(Wire) or wire == "native":
        raise ValueError(f"{path}: wire must be chat, responses or anthropic, got {wire!r}")
    timeout_s = table.pop("timeout_s", None)
    if timeout_s is not None and (not isinstance(timeout_s, int | float) or timeout_s <= 0):
        raise ValueError(f"{path}: timeout_s must be a number of seconds above 0, got {timeout_s!r}")
    codes = table.pop("policy_exit_codes", [])
    if not isinstance(codes, list) or not all(isinstance(code, int) for code in codes):
        raise ValueError(f"{path}: policy_exit_codes must be a list of whole numbers, got {codes!r}")
    name = _checked(reader.text("name"))
    version, auxiliary = reader.text("version"), reader.texts("auxiliary")
    argv = reader.texts("argv")
    if not argv:
        raise ValueError(f"{path}: argv must name the program to start")
    program = _Program(
        argv, reader.texts("install"), reader.table("env"), reader.files(), reader.texts("harvest"), frozenset(codes)
    )  # fmt: skip
    if table:
        raise ValueError(f"{path}: {sorted(table)[0]} is not a known key")
    manifest = Manifest(name, version, "black", wire, source_sha(path.parent), auxiliary, timeout_s)
    return Scaffold(manifest, partial(TomlBlackBox, program))


class _Reader:
    """Takes keys out of a table, each checked; what is left over is unknown."""

    def __init__(self, path: Path, table: dict[str, Any]) -> None:
        self._path = path
        self._table = table

    def text(self, key: str, default: str | None = None) -> Any:
        value = self._table.pop(key, default)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self._path}: {key} must be text, got {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.pop(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{self._path}: {key} must be a list of texts, got {value!r}")
        return tuple(value)

    def table(self, key: str) -> dict[str, str]:
        value = self._table.pop(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ValueError(f"{self._path}: [{key}] must hold texts, got {value!r}")
        return value

    def files(self) -> dict[str, bytes]:
        found = {}
        for inside, beside in self.table("files").items():
            try:
                found[inside] = (self._path.parent / beside).read_bytes()
            except OSError as error:
                raise ValueError(f"{self._path}: [files] {inside}: {error}") from error
        return found


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the scaffold name {name!r} cannot be used: write 1 to 32 of a-z, 0-9, '_' and '-'")
    return name


def _filler(task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Callable[[str], str]:
    values = {"gateway": asdict(gateway), "task": asdict(task), "limits": asdict(limits)}

    def one(match: re.Match[str]) -> str:
        return str(values[match[1]].get(match[2], match[0]))

    return lambda text: _PLACEHOLDER.sub(one, text)


def _fill_bytes(body: bytes, fill: Callable[[str], str]) -> bytes:
    try:
        return fill(body.decode()).encode()
    except UnicodeDecodeError:  # not text: nothing to fill in
        return body
