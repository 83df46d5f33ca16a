"""The evidence of a broken invariant: which submissions are missing, with their rows and last transitions."""

import re
from subprocess import CompletedProcess

import pytest

from sandboxes.base import Provider
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import ConformanceCheck, run_check
from sandboxes.conformance.registry import Body, Unmet, confined
from tests import violations
from tests.integration.audit.audit_damage import batch, group
from tests.integration.audit.audited import no_violations
from tests.integration.audit.rig import LEDGER, healthy
from tests.integration.audit.test_audit import RUN, Place, over, reading
from tests.violations import Violation, command_found_nothing, nothing_got_out, promise_kept

__all__ = ["healthy", "over"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("pool")]


TRAINED_TWICE = f"""drop index batch_items_once;
    insert into batch_items(batch_id, pos, group_id) values ({batch(1)}, 9, {group("a")})"""


async def nothing_lost(place: Place, *more: str) -> None:
    async with reading(place.url) as engine, engine.connect() as connection:
        await violations.nothing_lost(connection, 1, [*LEDGER, *more])


async def test_a_run_that_kept_its_promises_has_no_violation(over: Place) -> None:
    await nothing_lost(over)
    async with reading(over.url) as engine:
        await no_violations(engine, RUN, ledger=LEDGER)


async def test_a_submission_that_was_never_answered_is_named(over: Place) -> None:
    with pytest.raises(
        Violation, match=r"^1 of the \d+ submissions .*\nghost: no row, so it was never answered\n"
    ):
        await nothing_lost(over, "ghost")


async def test_a_submission_without_a_terminal_state_is_named_with_its_rows_and_its_last_transitions(
    over: Place,
) -> None:
    await over.execute("update groups set state = 'dispatched' where submission = 'a'")
    with pytest.raises(Violation) as raised:
        await nothing_lost(over)
    message = str(raised.value)
    assert re.search(r"^a: submission a, status accepted, .*group_id \d+, state dispatched", message, re.M)
    assert len(re.findall(r"^  rollout \d+: .*state verified", message, re.M)) == 4
    assert re.search(r"^  [\d:.]+ group \d+ taken → trained", message, re.M)
    assert re.search(r"^  [\d:.]+ run 1 ending → ended", message, re.M)


async def test_a_group_that_was_trained_twice_is_named_with_its_batches(over: Place) -> None:
    await over.execute(TRAINED_TWICE)
    with pytest.raises(Violation, match=r"1 groups were trained .*\ngroup \d+ is in the .* \[0, 1\]\n .*→"):
        await nothing_lost(over)


async def test_findings_of_the_auditor_come_with_rows_and_transitions(over: Place) -> None:
    await over.execute("update groups set reason = 'because' where submission = 'cancelled'")
    async with reading(over.url) as engine:
        with pytest.raises(
            Violation, match=r"(?s)found 1 violations.*I1 filtered and dead .*'because'.*→ filtered"
        ):
            await no_violations(engine, RUN)


@pytest.mark.parametrize(
    ("output", "status", "raised"),
    [
        ("3 of 4\nrun 'x' (ended): 3 violations in 0.1 s\n", 1, Violation),
        ('{"run": "x", "violations": 2, "seconds": 0.1}\n', 1, Violation),
        ("run 'x' (ended): 10 violations in 0.1 s\n", 0, Violation),
        ("", 2, AssertionError),
        ('{"run": "x", "violations": 0, "seconds": 0.1}\n', 1, AssertionError),
        ("run 'x' (ended): 0 violations in 0.1 s\n", 0, None),
        ('{"run": "x", "violations": 0, "seconds": 0.1}\n', 0, None),
    ],
)
def test_findings_of_the_command_are_a_violation_in_both_of_its_forms_and_its_own_failure_is_none(
    output: str, status: int, raised: type[AssertionError] | None
) -> None:
    audited = CompletedProcess("penstock audit", status, output, "why")
    if raised is None:
        command_found_nothing(audited)
        return
    with pytest.raises(raised) as caught:
        command_found_nothing(audited)
    assert caught.type is raised and output in str(caught.value)


def test_every_attempt_that_got_out_is_named_with_what_it_reached() -> None:
    nothing_got_out({})
    with pytest.raises(
        Violation, match=r"^2 attempts got out of a sandbox:\na mount: out\na disk: /dev/vda$"
    ):
        nothing_got_out({"a mount": "out", "a disk": "/dev/vda"})


async def test_an_escape_is_a_violation_and_another_broken_promise_is_not() -> None:
    async def gets_out(provider: Provider) -> None:
        confined(False, "it got out")

    async def is_slow(provider: Provider) -> None:
        raise Unmet("the program did not start")

    async def result(body: Body) -> None:
        check = ConformanceCheck(name="no way out", body=body, isolation=True)
        promise_kept(await run_check(BubblewrapProvider(), check))

    with pytest.raises(Violation, match="an escape from a sandbox, no way out: Escaped: it got out"):
        await result(gets_out)
    with pytest.raises(AssertionError, match="did not start") as raised:
        await result(is_slow)
    assert not isinstance(raised.value, Violation)
