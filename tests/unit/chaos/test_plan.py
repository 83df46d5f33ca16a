"""The faults of a run are a pure function of its seed."""

from collections import Counter
from dataclasses import replace

import pytest

from ops.lab.chaos.main import chosen
from ops.lab.chaos.plan import (
    BLOCK,
    HOUR_S,
    LINKS,
    PROCESSES,
    SANDBOX,
    USUAL,
    FaultKind,
    Lengths,
    between,
    take,
)
from ops.lab.chaos.prepare import length_s, scaled
from orchestrator.settings.config import Config


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    assert take(7, 40) == take(7, 40) != take(8, 40)


def test_a_run_ends_with_its_last_kill_and_a_longer_one_begins_as_the_shorter_one_does() -> None:
    short, long = take(3, 5), take(3, 50)
    assert sum(fault.kind is FaultKind.KILL for fault in short) == 5 and short[-1].kind is FaultKind.KILL
    assert long[: len(short)] == short
    assert [fault.index for fault in long] == list(range(len(long)))


def test_a_replay_does_the_faults_that_the_run_did() -> None:
    assert between(3, 4, 6) == take(3, 20)[4:7]


def test_sixty_faults_kill_and_stop_every_component_and_hold_every_kind() -> None:
    faults = between(11, 0, 3 * len(BLOCK) - 1)
    assert {fault.victim for fault in faults if fault.kind is FaultKind.KILL} == {*PROCESSES, SANDBOX}
    assert Counter(fault.victim for fault in faults if fault.kind is FaultKind.STOP) == dict.fromkeys(
        (*PROCESSES, SANDBOX), 1
    )
    parted = {FaultKind.STALL, FaultKind.CUT, FaultKind.DELAY}
    assert {fault.kind for fault in faults} | parted == set(FaultKind)
    assert sum(fault.kind in parted for fault in faults) == 6
    assert {(f.victim, f.service) for f in faults if f.kind in parted} <= set(LINKS)
    assert {abs(fault.shift_s) for fault in faults if fault.kind is FaultKind.CLOCK} == {HOUR_S}


@pytest.mark.parametrize("seed", range(50))
def test_the_short_run_does_sixty_faults_and_thirty_kills_whatever_the_seed_and_without_root_others_instead(
    seed: int,
) -> None:
    for without in ((), (FaultKind.DISK,)):
        faults = take(seed, 30, 60, without)
        assert len(faults) >= 60 and sum(fault.kind is FaultKind.KILL for fault in faults) >= 30
        assert not {fault.kind for fault in faults} & set(without)
    here, anywhere = take(seed, 30, 60, (FaultKind.DISK,)), take(seed, 60, 120)
    assert here == [fault for fault in anywhere if fault.kind is not FaultKind.DISK][: len(here)]


def test_options_that_leave_no_fault_are_refused() -> None:
    assert chosen(1, 0, 60, "", ()) and chosen(1, 1, 0, "", ()) and len(chosen(1, 36, 60, "3-5", ())) == 3
    disk = next(fault.index for fault in take(1, 30) if fault.kind is FaultKind.DISK)
    for kills, least, only, without in ((0, 0, "", ()), (36, 60, str(disk), (FaultKind.DISK,))):
        with pytest.raises(ValueError, match="no fault is left"):
            chosen(1, kills, least, only, without)
    with pytest.raises(ValueError, match="17-23"):
        chosen(1, 36, 60, "-3", ())


def test_victims_are_dealt_evenly() -> None:
    killed = Counter(fault.victim for fault in take(1, 90) if fault.kind is FaultKind.KILL)
    assert set(killed.values()) == {10}


@pytest.mark.parametrize("scale", [1, 5, 20, 60])
def test_at_any_scale_an_outage_is_longer_than_what_it_must_outlast(scale: float) -> None:
    config = scaled(Config(), scale)
    leases = max(config.rollout.lease_ttl_s, config.servers.lease_ttl_s)
    timeouts = config.timeouts
    for fault in take(7, 10, least=200):
        if fault.kind is FaultKind.STOP:
            assert length_s(fault, scale) > max(leases, timeouts.pool_idle_s, timeouts.gateway_silent_s)
        elif fault.kind in (FaultKind.STALL, FaultKind.CUT, FaultKind.DELAY):
            assert length_s(fault, scale) > max(leases, timeouts.pool_silence_s, 3 * timeouts.bus_ping_s)


def test_how_long_faults_last_is_a_setting_and_changes_nothing_else_about_them() -> None:
    usual, longer = take(5, 40), take(5, 40, lengths=Lengths.of(["stop=600", "partition=1.5"]))
    for before, after in zip(usual, longer, strict=True):
        assert replace(after, length_s=before.length_s) == before
        if before.kind is FaultKind.STOP:
            assert (before.length_s, after.length_s) == (USUAL.stop, 600)
        elif before.kind in (FaultKind.STALL, FaultKind.CUT, FaultKind.DELAY):
            assert after.length_s == 1.5
        else:
            assert after.length_s == before.length_s


@pytest.mark.parametrize("word", ["nap=3", "stop", "stop=soon", "stop=-1", "stop=nan"])
def test_a_length_that_makes_no_sense_is_refused_by_name(word: str) -> None:
    with pytest.raises(ValueError, match=f"not '{word}'"):
        Lengths.of([word])
