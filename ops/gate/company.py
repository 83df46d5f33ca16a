"""A plugin of pytest for ./ops/test: what fills the machine (marker `alone`) is left to a session of its own, with no other test next to it.

`PENSTOCK_ALONE=FILE python -m pytest -p ops.gate.company …` leaves these tests out and writes their names to the file, one per line. Here every
mark counts, wherever it comes from: a decorator, a helper, a parameter.
"""

import os
from pathlib import Path

import pytest

FILE = "PENSTOCK_ALONE"


@pytest.hookimpl(trylast=True)  # what `-k` or another hook leaves out does not run alone either
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes the tests out, and writes their names down."""
    alone = [item for item in items if item.get_closest_marker("alone")]
    if not alone:
        return
    config.hook.pytest_deselected(items=alone)
    items[:] = [item for item in items if not item.get_closest_marker("alone")]
    # Every worker of xdist collects the same tests, so the last one to write changes nothing.
    file = Path(os.environ[FILE])
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text("".join(f"{item.nodeid}\n" for item in alone), encoding="utf-8")
    new.rename(file)
