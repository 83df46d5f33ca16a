"""The packages that formats need. They are extras: a missing one gives a sentence, not a traceback."""

import importlib
from typing import Any

from orchestrator.contracts.errors import ConfigurationError


def need(module: str, package: str, form: str) -> Any:
    """The imported module of an export format. Raises ConfigurationError that names the package to install."""
    return import_extra(module, package, user=f"penstock export {form}", extra="export")


def import_extra(module: str, package: str, *, user: str, extra: str) -> Any:
    """The imported module, which `user` needs. Raises ConfigurationError that names the package and the extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.partition(".")[0]):
            raise
        raise ConfigurationError(
            f"{user} needs the package {package}, which is not installed: pip install 'penstock[{extra}]'"
        ) from None
