"""The process keys of a run as other processes know them: those in force at the newest start of one of its orchestrators.

A task for a run is judged by any orchestrator of the database, and a dashboard shows every run. Neither has the file of another run. So an
orchestrator writes the few process keys that they read into `runs.process_config` when it starts. Keys that may hold secrets (URLs with logins,
variables of builds, options of engines) are not among them.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.settings.config import Config

KEPT: Final = (
    "rollout.slots",
    "watchdog.no_progress_s",
    "servers.urls",
    "servers.embedded",
    "servers.evaluation",
    "sandbox.provider",
    "sandbox.images.directory",
    "sandbox.kubernetes.user_namespaces",
)


def kept_values(config: Config) -> dict[str, Any]:
    """The values of `KEPT` in `config` by dotted key, as JSON. In place of `servers.urls` their number is kept, as that of embedded servers."""
    values = {key: _value(config.to_json(), key) for key in KEPT}
    values["servers.embedded"] = len(config.servers.urls) or config.servers.embedded
    values["servers.urls"] = []
    return values


def newest_config(stored: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Config:
    """The configuration of another run: `stored` (`StoredRun.config`) with the values of `kept` (`StoredRun.process_config`). Without these: as
    the run began. Orchestrators of older code leave those of an earlier start. Raises ConfigurationError if this code cannot read `stored`."""
    found = copy.deepcopy(dict(stored))
    for key in KEPT:
        if kept is not None and key in kept:
            *sections, name = key.split(".")
            table = found
            for section in sections:
                table = table.setdefault(section, {})
            table[name] = kept[key]
    return Config.from_json(found)


def _value(values: dict[str, Any], key: str) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found[part]
    return found
