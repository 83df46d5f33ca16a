"""Files of a checkout that lie outside of its packages. A wheel has them inside the orchestrator (pyproject.toml)."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(installed: str, checkout: str) -> Path:
    """The directory `installed` of a wheel's orchestrator, or `checkout` of a checkout."""
    inside = _PACKAGE / installed
    return inside if inside.is_dir() else _PACKAGE.parent / checkout
