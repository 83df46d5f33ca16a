"""The ledger keeps the records from before a kill, and a resumed run continues from there."""

import importlib.util
import json
from pathlib import Path

import pytest

from ops.lab.chaos import results
from ops.lab.chaos.ledger import (
    FAULTS,
    SUBMISSIONS,
    Ledger,
    faults_of,
    lines,
)
from ops.lab.chaos.load import event_of
from ops.lab.chaos.plan import FaultKind, take
from ops.lab.chaos.prepare import (
    FLOORS,
    HARNESS,
    scaled,
    write_run,
)
from ops.lab.chaos.regenerated import AttemptCall
from ops.lab.chaos.results import FaultOutcome, Spread
from orchestrator.audit.i3_external_record import (
    ANSWERS,
    GENERATIONS,
    digest_of,
    made_of,
)
from orchestrator.contracts.events import encode
from orchestrator.settings.config import FILE, Config, load


def outcome(
    index: int, kind: FaultKind = FaultKind.KILL, recovery_s: float | None = 1.0, problem: str = ""
) -> FaultOutcome:
    return FaultOutcome(
        index=index,
        kind=kind,
        victim="gateway",
        title=f"{kind} gateway",
        at=1.0,
        in_flight=index % 2 == 0,
        steps=20,
        commits=0,
        recovery_s=recovery_s,
        problem=problem,
    )


def test_a_line_that_a_kill_cut_off_is_forgotten_and_the_others_are_kept(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.submits(["chaos:000000", "chaos:000001"])
        ledger.answered(b'{"session": "aa", "digest": "bb"}\nnot json\n{"session": "aa"}\n')
        ledger.called(AttemptCall("1:1", (1, 2, 3), 0.5))
        assert ledger.answers == 1
    with (tmp_path / SUBMISSIONS).open("a") as file:
        file.write("chaos:00")
    with Ledger(tmp_path) as ledger:
        ledger.submits(["chaos:000002"])
        assert ledger.answers == 1
    assert lines(tmp_path / SUBMISSIONS) == ["chaos:000000", "chaos:000001", "chaos:000002"]
    assert lines(tmp_path / ANSWERS) == ['{"session": "aa", "digest": "bb"}']
    assert lines(tmp_path / GENERATIONS) == ['{"of": "1:1", "ids": [1, 2, 3]}']


def test_a_fault_that_started_and_did_not_end_is_done_again(tmp_path: Path) -> None:
    first, second = take(1, 2)[:2]
    with Ledger(tmp_path) as ledger:
        ledger.fault(results.started(first, 1.0))
        ledger.fault(outcome(0).line())
        ledger.fault(results.started(second, 2.0))
    with (tmp_path / FAULTS).open("a") as file:
        file.write('{"done": tr')
    assert results.outcomes(faults_of(tmp_path)) == [outcome(0)]


def test_what_is_published_again_is_the_same_submission() -> None:
    one, other = event_of("chaos:000007"), event_of("chaos:000008")
    assert encode(event_of("chaos:000007")[1]) == encode(one[1]) != encode(other[1])


def test_recoveries_are_counted_by_component_and_what_was_not_measured_is_left_out() -> None:
    done = [outcome(n, recovery_s=float(n)) for n in range(1, 101)] + [
        outcome(200, recovery_s=None, problem="?")
    ]
    assert results.recoveries(done) == {"gateway": Spread(count=100, p50=50.0, p95=95.0, largest=100.0)}
    assert results.kills(done) == 100 and results.by_kind(done) == {"kill": 101}
    assert results.in_flight([outcome(0), outcome(1), outcome(2), outcome(4)]) == 0.75


@pytest.mark.parametrize(
    ("action", "whole", "cut"),
    [
        ((1, 2, 3), True, True),
        ((1, 2), True, True),
        ((1, 2, 3, 1, 2, 3), True, True),
        ((1, 2, 1), False, True),
        ((1,), False, True),
        ((2, 3), False, False),
        ((1, 2, 9), False, False),
    ],
)
def test_an_action_is_made_of_whole_completions_but_for_the_last_where_it_was_cut(
    action: tuple[int, ...], whole: bool, cut: bool
) -> None:
    known: dict[int, set[tuple[int, ...]]] = {1: {(1, 2), (1, 2, 3)}, 3: {(3,)}}
    assert (made_of(action, known, cut=False), made_of(action, known, cut=True)) == (whole, cut)


def test_the_agent_program_and_the_auditor_digest_a_message_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_SOCKET", "PENSTOCK_TOKEN", "PENSTOCK_BASE_URL"):
        monkeypatch.setenv(name, "x")
    spec = importlib.util.spec_from_file_location("chaos_agent", HARNESS / "agent.py")
    assert spec is not None and spec.loader is not None
    agent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agent)
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "bash", "arguments": json.dumps({"b": 1, "a": "x\0"})},
    }
    message = {"role": "assistant", "content": "h\ud800\0é", "reasoning_content": "why", "tool_calls": [call]}
    digest = digest_of("h?\ufffdé", "why", [("bash", {"a": "x\ufffd", "b": 1})])  # as text columns hold it
    assert agent.digest_of(message) == digest
    assert agent.digest_of({"role": "assistant", "content": None}) == digest_of("", None, [])


def test_the_configuration_that_is_written_is_the_one_that_is_read_with_durations_divided_down_to_their_floors(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, seed=3, scale=20.0, model=tmp_path / 'a "model"')
    found, defaults = load(tmp_path / FILE), Config()
    assert (found.run.seed, found.policy.model, found.queue.group_size) == (3, str(tmp_path / 'a "model"'), 2)
    assert found.timeouts.resend_s == defaults.timeouts.resend_s / 20.0
    assert found.servers.retry_s == defaults.servers.retry_s / 20.0
    assert found.rollout.lease_ttl_s == FLOORS["rollout"]["lease_ttl_s"] > defaults.rollout.lease_ttl_s / 20.0
    assert scaled(defaults, 1.0) == defaults and scaled(defaults, 2.0).rollout.lease_ttl_s == 15.0
    assert found.rollout.scaffolds == {str(HARNESS.resolve()): 0.8, "shell": 0.2}
