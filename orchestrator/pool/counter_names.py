"""The meaning of a run's named counters, in words for people. This is the only list of their names."""

from typing import Final

MEANINGS = {
    "admission_halted": "how often the circuit breaker opened, because most attempts failed for the platform's sake",
    "assignments_stale": "assignments of an old lease epoch: acknowledged, and nothing was done",
    "digests_wrong": "results whose digest is not that of the stored steps: the attempt runs again",
    "groups_unrewarded": "groups whose rewards could not be computed, because of an error in our code: they are dead",
    "leases_expired": "leases that ran out while their worker was silent: the work was given to another",
    "leases_given_back": "leases that a worker gave back before their end: the work was given to another",
    "leases_lost": "leases that a worker lost while it worked: it stopped, and its result does not count",
    "measurements_failed": "measurements of the speed noise that were lost, because of an error in our code: the groups keep their rewards",
    "process_signals_failed": "groups whose process signal raised an error: they are rewarded without it",
    "results_stale": "results of an attempt that did not count any more",
    "resumes_diverged": "resumed attempts whose program then made a request that differs from the recorded one",
    "rewinds": "rewinds of the run to an earlier version",
    "rollouts_given_up": "rollouts that could not be taken back after their lease, because of an error in our code: their groups are dead",
    "rollouts_resumed": "attempts that went on from their recorded steps",
    "scaffold_errors": "attempts that ended because the scaffold's own code raised an error",
    "steps_conflicting": "steps that differ from what is stored under their number: refused",
    "steps_repeated": "steps that were stored already: nothing was done",
    "steps_stale": "steps of an old lease epoch: refused",
    "verdicts_rescored": "verifications that a person requested again",
    "verdicts_stale": "verdicts of an attempt that did not count any more",
}


REFUSED = "_refused"  # suffix behind a stream's name, used by `pool.dead_letters.keep`
OTHER = "OTHER"  # the stream of letters on subjects of no stream
STREAMS: Final = ("BLOBS", "DEAD", "POLICY", "RESULTS", "STEPS", "TASKS", "WORK")
NAMES: Final = frozenset({*MEANINGS, *(f"{stream.lower()}{REFUSED}" for stream in (*STREAMS, OTHER))})
"""Every counter. Nothing that a sender chooses becomes one."""
UNKNOWN = "counted by another release of Penstock"


def meaning(name: str) -> str:
    """The meaning in words. A counter that only another release knows is described as such.

    >>> meaning("steps_stale"), meaning("of_tomorrow")
    ('steps of an old lease epoch: refused', 'counted by another release of Penstock')
    >>> meaning("tasks_refused")
    'messages of the stream TASKS that could not be used: they are dead letters'
    """
    if name not in MEANINGS and name.endswith(REFUSED):
        stream = name.removesuffix(REFUSED).upper()
        if stream == OTHER:
            return "letters about messages of streams that do not exist"
        return f"messages of the stream {stream} that could not be used: they are dead letters"
    return MEANINGS.get(name, UNKNOWN)
