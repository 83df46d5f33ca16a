"""The readers of bytes from untrusted sources, each with its permitted answers. Any other raised error is a fault of ours.

A target is made once, with a directory of its own, and then called with any bytes at all.
"""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.bus import frames
from orchestrator.bus.frames import Put, Settled
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.settings import parse_settings
from orchestrator.tasks.verdict import parse_results, parse_reward
from sandboxes.base import ImageRefused, SandboxError
from sandboxes.container.content import DirectoryBounds, read

Target = Callable[[bytes], None]


def _wire(name: str) -> Callable[[Path], Target]:
    """Bytes decide which parts of a client's body have which values: a fuzzer alone rarely writes JSON."""

    def made(directory: Path) -> Target:
        from hypothesis import given, settings

        from orchestrator.gateway.render import load_renderer
        from tests.unit.gateway import dialect_rig
        from tests.unit.gateway.test_dialect_fuzz import bodies, check
        from trainer.policy.init import make_policy

        model = directory / "policy"
        renderer = load_renderer(model if model.exists() else make_policy(model, seed=0))
        wire = {wire.dialect.name: wire for wire in dialect_rig.WIRES}[name]

        @settings(database=None, deadline=None)
        @given(body=bodies(wire))
        def answered_or_refused(body: object) -> None:
            check(wire, renderer, json.dumps(body).encode())

        fuzzed: Any = answered_or_refused  # Hypothesis does not declare the attribute

        def read(data: bytes) -> None:
            fuzzed.hypothesis.fuzz_one_input(data)

        return read

    return made


def _forest(directory: Path) -> Target:
    """Bytes decide the conversation that a session's forest gets, and its chat format."""
    from hypothesis import settings
    from hypothesis.stateful import get_state_machine_test

    from orchestrator.gateway.render import load_renderer
    from tests.stateful.test_forest_machine import machine
    from tests.unit.gateway.conftest import KINDS, model_directory

    drawn = settings(database=None, deadline=None, stateful_step_count=14)
    talks = [
        get_state_machine_test(
            machine(load_renderer(model_directory(kind, directory / kind))), settings=drawn
        )
        for kind in KINDS
    ]

    def converse(data: bytes) -> None:
        if data:
            talks[data[0] % len(talks)].hypothesis.fuzz_one_input(data[1:])  # type: ignore[attr-defined]

    return converse


def _journal(directory: Path) -> Target:
    def read(data: bytes) -> None:
        content = frames.read(data)
        assert content.end + content.torn <= len(data) and content.damaged <= content.end
        whole = frames.MAGIC + b"".join(frames.frame(record) for record in content.records)
        assert frames.read(whole).records == content.records

    return read


def _task(directory: Path) -> Target:
    names = ("task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile")

    def read(data: bytes) -> None:
        try:
            task = Task.from_files(dict(zip(names, data.split(b"\xff", 3), strict=False)))
            task.environment(("debian:12",), containers=False)
        except ValueError as error:
            assert "\n" not in str(error)

    return read


def _settings(directory: Path) -> Target:
    def read(data: bytes) -> None:
        try:
            parse_settings(data.decode(errors="surrogateescape"))
        except ValueError as error:
            assert "\n" not in str(error)

    return read


def _reward(directory: Path) -> Target:
    def read(data: bytes) -> None:
        text = data.decode(errors="replace")
        for parse in (parse_reward, parse_results):
            try:
                parse(text)
            except ValueError as error:
                assert str(error)

    return read


def _image(directory: Path) -> Target:
    """The archive of a work directory, unchanged and with corrected header sums: a fuzzer alone rarely computes such a sum."""
    bounds = DirectoryBounds(entries=20, file=1024, total=2048)

    def read_all(data: bytes) -> None:
        for archive in (data, _summed(data)):
            try:
                found = read(io.BytesIO(archive), bounds)
            except (ImageRefused, SandboxError) as error:
                assert "\n" not in str(error)
                continue
            paths = [*found.files, *found.links, *found.directories]
            assert len(paths) == len(set(paths)) <= bounds.entries
            assert not any(part in ("", ".", "..") for path in paths for part in path.split("/"))
            assert sum(len(file.data) for file in found.files.values()) <= bounds.total

    return read_all


def _summed(data: bytes) -> bytes:
    blocks = [bytearray(data[at : at + tarfile.BLOCKSIZE]) for at in range(0, len(data), tarfile.BLOCKSIZE)]
    for block in blocks:
        if block[257:262] == b"ustar" and len(block) == tarfile.BLOCKSIZE:
            block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:]))
    return b"".join(blocks)


def _an_archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind, to in (
            ("a", tarfile.REGTYPE, ""),
            ("l", tarfile.SYMTYPE, "a"),
            ("h", tarfile.LNKTYPE, "a"),
        ):
            entry = tarfile.TarInfo(f"./{name}")
            entry.type, entry.linkname = kind, to
            entry.pax_headers = {"comment": "x"} if kind == tarfile.SYMTYPE else {}
            archive.addfile(entry)
    return out.getvalue()[: 8 * tarfile.BLOCKSIZE]


def _scaffold(directory: Path) -> Target:
    from scaffolds.find import find

    def read(data: bytes) -> None:
        (directory / "scaffold.toml").write_bytes(data)
        try:
            assert find(str(directory)).manifest.name
        except ValueError as error:
            assert str(error)

    return read


def _planted(directory: Path) -> Target:
    """A fault behind three comparisons: for the test that faults are found."""

    def read(data: bytes) -> None:
        if len(data) > 2 and data[0] == 0x50 and data[1] == 0x45 and data[2] == 0x4E:
            raise RuntimeError("the planted fault")

    return read


TARGETS: dict[str, Callable[[Path], Target]] = {
    "chat": _wire("chat"),
    "responses": _wire("responses"),
    "anthropic": _wire("anthropic"),
    "forest": _forest,
    "image": _image,
    "journal": _journal,
    "task": _task,
    "settings": _settings,
    "reward": _reward,
    "scaffold": _scaffold,
    "planted": _planted,
}

HERE = Path(__file__).resolve().parents[2]
SEEDS: dict[str, list[bytes]] = {
    "image": [_an_archive()],
    "journal": [
        frames.MAGIC
        + frames.frame(
            Put(n=1, subject="steps.r", msg_id="m1", schema="StepRecorded/1", body=msgspec.Raw(b"{}"))
        )
        + frames.frame(Settled([1]))
    ],
    "task": [
        b"\xff".join(
            [b"[agent]\ntimeout_sec = 5", b"do", b"true", b"FROM debian:12\nENV A=${B}\nCOPY a /app"]
        )
    ],
    "settings": [
        b'version = "1"\n[metadata]\ndomain = "x"\n[agent]\ntimeout_sec = 5.0\nmax_turns = 3\n[verifier]\ntimeout_sec = 9'
    ],
    "reward": [b"1.0", b'{"results": [{"name": "a", "passed": true}]}'],
    "scaffold": [path.read_bytes() for path in sorted(HERE.glob("agents/scaffolds/**/scaffold.toml"))[:3]],
}
"""A target's initial inputs: valid bytes."""
