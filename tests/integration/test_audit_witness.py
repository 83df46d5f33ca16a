"""I3 from outside: what a witness wrote down while it happened is what is stored, and what is not is named."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.audit import Checked, audit
from orchestrator.audit.witness import ANSWERS, GENERATIONS, digest_of
from orchestrator.pool.engine import Role, open_engine
from tests.integration.audit_damage import WITNESSED
from tests.integration.audit_rig import CONFIG, Healthy, healthy
from tests.integration.test_audit import Place, copied

__all__ = ["healthy"]
pytestmark = [pytest.mark.services, pytest.mark.anyio]
RECEIVED, GENERATED = WITNESSED


@pytest.fixture
def over(databases, healthy: Healthy, tmp_path: Path) -> Iterator[Place]:  # type: ignore[no-untyped-def]
    yield from copied(databases, healthy, healthy.ended, tmp_path)


async def check(place: Place, witness: Path, name: str) -> Checked:
    async with open_engine(place.url, Role.READER, size=2, name="audit") as engine:
        report = await audit(engine, CONFIG.run.name, witness=witness)
    [found] = [one for one in report.checks if one.name == name]
    assert found.invariant == "I3"
    return found


async def session(place: Place, token: str) -> tuple[str, list[str]]:
    """A session of a rollout that counts: (the hash of its token, what its steps say)."""
    name = hashlib.sha256(token.encode()).hexdigest()
    of_one = "(select min(r.rollout_id) from rollouts r where r.state = 'verified' and r.attempt = 1)"
    await place.execute(
        "insert into sessions(run_id, rollout_id, attempt, epoch, token_hash, budget, expires)"
        f" select 1, {of_one}, 1, 1, '\\x{name}', '{{}}', now();"
        "insert into messages(run_id, rollout_id, attempt, idx, appended, reply)"
        f" select 1, {of_one}, 1, n, '[]', jsonb_build_object('role', 'assistant', 'content', 'said ' || n) from generate_series(100, 101) n"
    )
    return name, ["said 100", "said 101"]


def write(witness: Path, name: str, *values: object) -> None:
    witness.mkdir(exist_ok=True)
    (witness / name).write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


async def test_answers_that_a_program_received_are_stored_or_named(over: Place, tmp_path: Path) -> None:
    name, said = await session(over, "secret")
    heard = [{"session": name, "digest": digest_of(text, None, [])} for text in said]
    refused = {"session": "00" * 32, "digest": digest_of("of an attempt that does not count", None, [])}
    witness = tmp_path / "witness"
    write(witness, ANSWERS, *heard, *heard[:1], refused)
    found = await check(over, witness, RECEIVED)
    assert (found.examined, found.found) == (3, 0)
    write(witness, ANSWERS, *heard, {"session": name, "digest": digest_of("never stored", None, [])})
    found = await check(over, witness, RECEIVED)
    assert found.found == 1 and "received an answer that no step of it has" in found.violations[0].what


async def test_actions_that_no_rollout_server_delivered_are_named(over: Place, tmp_path: Path) -> None:
    async with (
        open_engine(over.url, Role.READER, size=1, name="test") as engine,
        engine.connect() as connection,
    ):
        rows = (
            await connection.exec_driver_sql("select distinct i4(action) as ids from steps where run_id = 1")
        ).all()
    witness = tmp_path / "witness"
    delivered = [[*row.ids, 7] for row in rows]  # each went on for a token after its stop
    write(witness, GENERATIONS, *delivered)
    found = await check(over, witness, GENERATED)
    assert found.examined > 50 and found.found == 0
    write(witness, GENERATIONS, *delivered[1:])
    found = await check(over, witness, GENERATED)
    assert found.found >= 1 and "no rollout server delivered" in found.violations[0].what


async def test_without_a_witness_the_checks_are_skipped_and_say_so(over: Place, tmp_path: Path) -> None:
    assert (await check(over, tmp_path, RECEIVED)).skipped == "no witness told what was received"
    assert (await check(over, tmp_path, GENERATED)).skipped == "no witness told what was generated"
