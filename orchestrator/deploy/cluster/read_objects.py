"""Objects from a directory of YAML files, in the way of `kubectl apply -f DIRECTORY`."""

from pathlib import Path
from typing import Any

import yaml

from orchestrator.contracts.errors import ConfigurationError
from sandboxes.text_files import read_text


def read_objects(directory: Path) -> list[dict[str, Any]]:
    """Every object of *.yaml, *.yml and *.json directly in `directory`, or of one file. ConfigurationError, one sentence."""
    files = (
        [directory]
        if directory.is_file()
        else sorted(file for file in directory.glob("*") if file.suffix in (".yaml", ".yml", ".json"))
    )
    if not files:
        raise ConfigurationError(f"{directory} holds no objects: name a directory of rendered YAML files")
    found: list[dict[str, Any]] = []
    for file in files:
        try:
            read = [each for each in yaml.safe_load_all(read_text(file)) if each is not None]
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
        for each in read:
            if not isinstance(each, dict):
                raise ConfigurationError(f"{file} holds something that is not a Kubernetes object")
            found.append(each)
    return found
