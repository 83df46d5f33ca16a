"""I3 from outside: stored data equal the records that a witness wrote as they happened, and differences are named."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.audit import Checked, audit
from orchestrator.audit.i3_external_record import ANSWERS, GENERATIONS, digest_of
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.pool.engine import Role, open_engine
from tests.integration.audit.audit_damage import WITNESSED
from tests.integration.audit.rig import CONFIG, Healthy, healthy
from tests.integration.audit.test_audit import Place, copied
from tests.services import Databases

__all__ = ["healthy"]
pytestmark = [pytest.mark.services, pytest.mark.anyio, pytest.mark.tier("pool")]
RECEIVED, GENERATED = WITNESSED


@pytest.fixture
def over(databases: Databases, healthy: Healthy, tmp_path: Path) -> Iterator[Place]:
    yield from copied(databases, healthy, healthy.ended, tmp_path)


async def check(place: Place, witness: Path, name: str) -> Checked:
    async with open_engine(place.url, Role.READER, size=2, name="audit") as engine:
        report = await audit(engine, CONFIG.run.name, witness=witness)
    [found] = [one for one in report.checks if one.name == name]
    assert found.invariant == "I3"
    return found


async def session(place: Place, token: str, epoch: int = 1) -> tuple[str, list[str]]:
    """A session of a rollout that counts: (the hash of its token, the texts of its steps)."""
    name = hashlib.sha256(token.encode()).hexdigest()
    of_one = "(select min(r.rollout_id) from rollouts r where r.state = 'verified' and r.attempt = 1)"
    await place.execute(
        "insert into sessions(run_id, rollout_id, attempt, epoch, token_hash, budget, expires)"
        f" select 1, {of_one}, 1, {epoch}, '\\x{name}', '{{}}', now();"
        "insert into messages(run_id, rollout_id, attempt, idx, appended, reply)"
        f" select 1, {of_one}, 1, n, '[]', jsonb_build_object('role', 'assistant', 'content', 'reply ' || n) from generate_series(100, 101) n"
        " on conflict do nothing"
    )
    return name, ["reply 100", "reply 101"]


def write(witness: Path, name: str, *values: object) -> None:
    witness.mkdir(exist_ok=True)
    (witness / name).write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


async def test_answers_that_a_program_received_are_stored_or_named(over: Place, tmp_path: Path) -> None:
    name, texts = await session(over, "secret")
    lines = [{"session": name, "digest": digest_of(text, None, [])} for text in texts]
    refused = {"session": "00" * 32, "digest": digest_of("of an attempt that does not count", None, [])}
    witness = tmp_path / "witness"
    write(witness, ANSWERS, *lines, *lines[:1], refused)
    found = await check(over, witness, RECEIVED)
    assert (found.examined, found.found) == (3, 0)
    write(witness, ANSWERS, *lines, {"session": name, "digest": digest_of("never stored", None, [])})
    found = await check(over, witness, RECEIVED)
    assert found.found == 1 and "received an answer that no step of it has" in found.violations[0].what


async def test_the_last_session_of_a_resumed_attempt_has_all_that_counts(over: Place, tmp_path: Path) -> None:
    before, texts = await session(over, "before")
    after, _ = await session(over, "after", epoch=2)
    lost = digest_of("it was never stored, and refused when the lease ended", None, [])
    digests = [digest_of(text, None, []) for text in texts]
    witness = tmp_path / "witness"
    witnessed = [{"session": before, "digest": digest} for digest in (*digests, lost)]
    witnessed += [{"session": after, "digest": digest} for digest in digests]
    write(witness, ANSWERS, *witnessed)
    found = await check(over, witness, RECEIVED)
    assert (found.examined, found.found) == (2, 0)
    write(witness, ANSWERS, *witnessed, {"session": after, "digest": lost})
    assert (await check(over, witness, RECEIVED)).found == 1


async def delivered(place: Place) -> dict[tuple[str, int], list[int]]:
    """The records that a proxy would have written: the ids of each step, by (its attempt, its number)."""
    async with (
        open_engine(place.url, Role.READER, size=1, name="test") as engine,
        engine.connect() as connection,
    ):
        rows = await connection.exec_driver_sql(
            "select rollout_id || ':' || attempt as of, idx, i4(action) as ids from steps where run_id = 1 order by 1, 2"
        )
        return {(row.of, row.idx): list(row.ids) for row in rows}


def entries(steps: dict[tuple[str, int], list[int]]) -> list[object]:
    return [{"of": of, "ids": ids} for (of, _), ids in steps.items()]


async def test_actions_that_no_rollout_server_delivered_are_named(over: Place, tmp_path: Path) -> None:
    lines = entries(await delivered(over))
    witness = tmp_path / "witness"
    write(witness, GENERATIONS, *lines)
    found = await check(over, witness, GENERATED)
    assert found.examined > 50 and found.found == 0
    write(witness, GENERATIONS, *lines[1:])
    found = await check(over, witness, GENERATED)
    assert found.found >= 1 and "no rollout server delivered" in found.violations[0].what


async def test_replies_of_a_script_are_not_completions_where_they_are_recorded_alone(
    over: Place, tmp_path: Path
) -> None:
    lines = entries(await delivered(over))
    witness = tmp_path / "witness"
    write(witness, GENERATIONS, *lines[1:])
    assert (await check(over, witness, GENERATED)).found >= 1
    await over.execute("""update sampling set params = params || '{"scripted": true}'""")
    assert (await check(over, witness, GENERATED)).found >= 1, "what trains was sampled"
    await over.execute("update groups set seq = null, purpose = 'record'")
    found = await check(over, witness, GENERATED)
    assert (found.examined, found.found) == (0, 0)


async def test_an_action_that_ends_before_its_completion_did_is_named_unless_the_gateway_may_have_ended_it(
    over: Place, tmp_path: Path
) -> None:
    steps = await delivered(over)
    witness = tmp_path / "witness"
    write(witness, GENERATIONS, *entries({key: [*ids, 7] for key, ids in steps.items()}))
    found = await check(over, witness, GENERATED)
    assert found.found == found.examined == len(steps)
    await over.execute("""update sampling set params = params || '{"stop": ["\\n"]}'""")
    assert (await check(over, witness, GENERATED)).found == 0


async def test_actions_that_were_swapped_between_rollouts_are_named(over: Place, tmp_path: Path) -> None:
    steps = await delivered(over)
    witness = tmp_path / "witness"
    write(witness, GENERATIONS, *entries(steps))
    first, *others = steps
    second = next(key for key in others if key[0] != first[0] and steps[key][0] != steps[first][0])

    def at(key: tuple[str, int], alias: str) -> str:
        rollout, attempt = key[0].split(":")
        return f"{alias}.rollout_id = {rollout} and {alias}.attempt = {attempt} and {alias}.idx = {key[1]}"

    await over.execute(
        f"update steps s set action = o.action from steps o where ({at(first, 's')} and {at(second, 'o')})"
        f" or ({at(second, 's')} and {at(first, 'o')})"
    )
    found = await check(over, witness, GENERATED)
    assert found.found == 2
    named = {(f"{v.rows['rollout_id']}:{v.rows['attempt']}", v.rows["idx"]) for v in found.violations}
    assert named == {first, second}


async def test_a_witness_that_does_not_say_for_whom_is_refused(over: Place, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    write(witness, GENERATIONS, [5, 6])
    with pytest.raises(ConfigurationError, match="does not say for whom"):
        await check(over, witness, GENERATED)


async def test_without_a_witness_the_checks_are_skipped_and_say_so(over: Place, tmp_path: Path) -> None:
    assert (await check(over, tmp_path, RECEIVED)).skipped == "no witness reported what was received"
    assert (await check(over, tmp_path, GENERATED)).skipped == "no witness reported what was generated"
