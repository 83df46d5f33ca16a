"""The files that tests write are read in every encoding that names itself, up to sizes that hold everything documented."""

import json
from collections.abc import Mapping
from typing import cast

import pytest

from orchestrator.contracts.no_verdict import NoVerdict
from orchestrator.runner.grade import REWARD_BYTES, Grade, GradedWork, _grade_of
from orchestrator.tasks.verdict import (
    MAX_NAME,
    MAX_SIGNALS,
    PROCESS_FILE,
    RESULTS_FILE,
    REWARD_FILE,
    REWARD_JSON,
)
from sandboxes.base import ExecResult, File, KilledBy, PathRefused, RefusedReason, Sandbox

pytestmark = pytest.mark.anyio

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32")


class Left:
    """A sandbox with the files that a test script left."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    async def get(self, path: str, *, max_bytes: int) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        if len(self._files[path]) > max_bytes:
            raise PathRefused(path, RefusedReason.TOO_LARGE)
        return self._files[path]


async def graded(files: Mapping[str, bytes]) -> Grade:
    result = ExecResult(
        exit_code=0, stdout=b"", stderr=b"", truncated=False, killed_by=KilledBy.NONE, wall_s=1.0, cpu_s=1.0
    )
    work = GradedWork(answer="", artifacts=[], tests={"test.sh": File(b"")})
    return await _grade_of(cast(Sandbox, Left(files)), result, work)


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
@pytest.mark.parametrize("indent", [None, 4])
async def test_as_many_named_numbers_as_are_documented_are_a_verdict(letter: str, indent: int | None) -> None:
    names = [f"{number:02d}{letter * (MAX_NAME - 2)}" for number in range(MAX_SIGNALS - 1)]
    values = {"reward": 0.5} | dict.fromkeys(names, -1.2345678901234567e-300)
    found = await graded({REWARD_JSON: json.dumps(values, indent=indent).encode()})
    assert (found.reward, found.reason, found.components) == (0.5, None, values)


@pytest.mark.parametrize("path", [REWARD_FILE, REWARD_JSON])
async def test_a_larger_reward_file_is_none_and_its_reason_names_the_limit(path: str) -> None:
    found = await graded({path: b"1" + b" " * REWARD_BYTES})
    assert (found.reward, found.cause) == (None, NoVerdict.REWARD)
    assert f"{path} is larger than 65,536 bytes: write less into it" in str(found.reason)
    found = await graded({path: b"1" + b" " * (REWARD_BYTES - 1)})
    assert found.reward == 1.0


@pytest.mark.parametrize("path", [RESULTS_FILE, PROCESS_FILE])
async def test_a_larger_list_is_left_out_by_a_note_that_names_the_limit(path: str) -> None:
    found = await graded({REWARD_FILE: b"1", path: b" " * 400_001})
    assert found.reward == 1.0 and f"left out: {path} is larger than 400,000 bytes" in found.log


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_a_byte_order_mark_says_how_each_file_is_read(encoding: str, end: str) -> None:
    def written(text: str) -> bytes:
        return f"{text}{end}".encode(encoding)

    lists = {
        RESULTS_FILE: written('[{"name": "\u00e9", "passed": true}]'),
        PROCESS_FILE: written('{"early": 0.5}'),
    }
    for reward in ({REWARD_FILE: written("0.5")}, {REWARD_JSON: written('{"reward": 0.5}')}):
        found = await graded(reward | lists)
        assert (found.reward, found.reason, found.log) == (0.5, None, "")
        assert [test.name for test in found.tests] == ["\u00e9"] and found.process == {"early": 0.5}


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"\xff\xfe1", b"\xef\xbb\xbf", b"\xff\xfe\x00\x00\x01", b"\xff1"]
)
async def test_a_mark_without_a_number_after_it_gives_no_verdict(body: bytes) -> None:
    found = await graded({REWARD_FILE: body})
    assert (found.reward, found.cause) == (None, NoVerdict.REWARD)
    assert "must hold one number" in str(found.reason)
