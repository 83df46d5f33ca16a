"""Renamed keys. A file or a stored run that uses an old name is refused with the new one."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orchestrator.settings.timeouts import Timeouts

SECTIONS: Final[Mapping[str, str]] = {"clock": "timeouts"}
RENAMED: Final[Mapping[str, str]] = {
    "clock.bus_look_s": "timeouts.bus_poll_interval_s",
    "clock.gateway_grudge_s": "timeouts.gateway_fault_window_s",
    "clock.parting_s": "timeouts.republish_window_s",
    "clock.refusals_s": "timeouts.stale_log_interval_s",
    **{f"clock.{name}": f"timeouts.{name}" for name in Timeouts.model_fields},
    "rollout.remind_s": "rollout.reassign_after_s",
    "servers.look_s": "servers.version_poll_interval_s",
    "servers.update_s": "servers.weight_update_timeout_s",
}


def old_keys(raw: Mapping[str, Any]) -> Iterator[str]:
    """The old names that raw sections use, as dotted keys.

    >>> list(old_keys({"rollout": {"remind_s": 5.0, "slots": 2}, "clock": 3}))
    ['rollout.remind_s']
    """
    for key in RENAMED:
        section, _, name = key.partition(".")
        if isinstance(found := raw.get(section), Mapping) and name in found:
            yield key


def renamed_in(key: str, value: object = None) -> list[str]:
    """The old names behind an unknown key: its own, or those in the renamed section that it is. `value`: its value.

    >>> renamed_in("clock", {"resend_s": 1.0, "typo_s": 2.0}), renamed_in("clock", {}), renamed_in("sandbox.typo")
    (['clock.resend_s'], ['clock'], [])
    """
    if key in RENAMED:
        return [key]
    if key not in SECTIONS:
        return []
    return list(old_keys({key: value})) or [key]


def now_called(key: str) -> str:
    """One sentence for an old name.

    >>> now_called("rollout.remind_s"), now_called("clock")
    ('rollout.remind_s is called rollout.reassign_after_s now', 'clock is called timeouts now')
    """
    return f"{key} is called {RENAMED.get(key) or SECTIONS[key]} now"
