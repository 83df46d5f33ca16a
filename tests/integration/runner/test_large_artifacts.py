"""Large files that an attempt leaves: through blobs to the tests, to people, and away with the run."""

import hashlib
from pathlib import Path

import pytest

from orchestrator.pool import blobs
from orchestrator.queries import files
from orchestrator.queries.differences import differences
from orchestrator.runtime import failpoints
from tests.integration.audit.audited import no_violations
from tests.integration.runner.rig import Opens, a_task, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("roles")]

LEAVES = (
    "seq 700000 > numbers; seq 1500 | sed 's/.*/f&/' | xargs touch; head -c 2000 numbers > small; mkdir -p /logs/artifacts; "
    "seq 900000 > /logs/artifacts/log; echo seen > old"
)
CHECK = (
    '[ "$(seq 700000 | sha256sum)" = "$(sha256sum < numbers)" ] && [ "$(ls f* | wc -l)" = 1500 ] && [ "$(cat old)" = seen ]'
    ' && [ "$(seq 900000 | cksum)" = "$(cksum < /logs/artifacts/log)" ] && [ ! -e gone ]'
)
NUMBERS = "".join(f"{number}\n" for number in range(1, 700_001)).encode()
BLOBS = "SELECT count(*) AS n FROM blobs"


async def test_the_tests_and_people_see_large_files_and_many_files(opens: Opens) -> None:
    given = {"environment/files/gone": b"x", "environment/files/old": b"y"}
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        task = a_task(runs(f"rm gone; {LEAVES}"), says("done"), check=CHECK, files=given)
        rollout = await rig.submit(task)
        assert await rig.verdict(rollout) == 1.0
        rows = await rig.rows(
            "SELECT path, body, parts, size FROM artifacts WHERE rollout_id = :id", id=rollout
        )
        left = {row.path: row for row in rows}
        assert len(left) == 1505 and left["numbers"].size == len(NUMBERS)
        assert len(left["numbers"].parts) == -(-len(NUMBERS) // 900_000)
        assert (left["gone"].body, left["gone"].parts) == (None, None)
        assert left["f7"].body == b"" and left["/logs/artifacts/log"].parts
        async with rig.context.engine.connect() as connection:
            key = connection, rig.context.run_id, rollout, 1
            shown = {file.path: file for file in await files.files(*key)}
            assert shown["/logs/artifacts/log"].bytes == left["/logs/artifacts/log"].size
            assert await files.file_body(*key, "numbers") == NUMBERS
            named = await blobs.named(connection)
            assert named >= {part.hex() for row in rows for part in row.parts or ()}
        await no_violations(
            rig.context.engine, rig.context.run, only=["blobs of tasks and attempts are stored"]
        )


async def test_equal_files_of_two_attempts_are_the_same_blobs(opens: Opens) -> None:
    task = a_task(runs("seq 700000 > numbers"), says("done"), check="[ -s numbers ]")
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        first = await rig.submit(task)
        assert await rig.verdict(first) == 1.0
        before = (await rig.rows(BLOBS))[0].n
        second = await rig.submit(task)
        assert await rig.verdict(second) == 1.0
        assert (await rig.rows(BLOBS))[0].n == before > 0
        async with rig.context.engine.connect() as connection:
            found = await differences(connection, rig.context.run_id, first, second)
        assert [(each.path, each.change) for each in found] == [("numbers", "same")]


async def test_an_attempt_over_the_limits_of_the_run_is_not_graded(opens: Opens) -> None:
    many = a_task(runs("seq 30 | xargs touch"), says("done"), check="true")
    total = a_task(
        runs("for n in 1 2 3; do head -c 900000 /dev/urandom > $n; done"), says("done"), check="true"
    )
    async with opens(sandbox={"artifact_files": 20, "artifact_mb": 2}) as rig:
        rig.start_runner()
        rig.start_verifier()
        reasons: dict[str, str] = {}
        for task in (many, total):
            rollout = await rig.submit(task)
            assert await rig.verdict(rollout) == 0.0
            (attempt,) = await rig.attempts(rollout)
            reasons[attempt.failure_class] = reasons.get(attempt.failure_class, "") + attempt.reason + "; "
    assert list(reasons) == ["policy_failure"]
    assert (
        "comes after the largest number of files" in reasons["policy_failure"]
        or "more than 20 files" in reasons["policy_failure"]
    )
    assert "comes after the largest total size" in reasons["policy_failure"]


@pytest.mark.parametrize(
    "point", ["artifacts.named.before", "artifacts.commit.before", "artifacts.commit.after"]
)
async def test_a_failure_while_large_files_are_stored_loses_nothing(
    opens: Opens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    (tmp_path / point).write_text("raise\ndelay 0.2\nraise\n")
    (tmp_path / point.rpartition(".")[0]).write_text("duplicate\n")
    monkeypatch.setattr(failpoints, "directory", tmp_path)
    task = a_task(
        runs("seq 700000 > numbers"),
        says("done"),
        check='[ "$(seq 700000 | cksum)" = "$(cksum < numbers)" ]',
    )
    async with opens() as rig:
        rig.start_runner()
        rig.start_verifier()
        assert await rig.verdict(await rig.submit(task)) == 1.0
        assert len((tmp_path / failpoints.HITS).read_text().splitlines()) >= 3
        rows = await rig.rows("SELECT sha, body FROM blobs")
        assert rows and all(hashlib.sha256(row.body).digest() == row.sha for row in rows)
