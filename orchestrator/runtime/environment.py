"""Secret values from the environment: $NAME, else the content of the file that $NAME_FILE names."""

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError
from sandboxes.text_files import read_text


def named(variable: str, environment: Mapping[str, str] | None = None) -> str:
    """The value of `variable` without white space around it; empty if neither is set. A file keeps it out of the environment, which children and
    crash reports see. An `.env` file of Windows leaves the CR of its line ends in values.

    Raises ConfigurationError, one sentence, for a file that cannot be read or is empty.
    """
    environment = os.environ if environment is None else environment
    if value := environment.get(variable, "").strip():
        return value
    if not (file := environment.get(f"{variable}_FILE")):
        return ""
    try:
        value = read_text(Path(file)).strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"${variable}_FILE names {file}, which cannot be read: {error}") from None
    if not value:
        raise ConfigurationError(f"${variable}_FILE names {file}, which is empty")
    return value
