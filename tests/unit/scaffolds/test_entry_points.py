"""Entry points are read once per process: reading them takes milliseconds, and every attempt finds a scaffold, every task a provider."""

from importlib.metadata import EntryPoints, entry_points
from types import ModuleType

import pytest
from scaffolds import find

from orchestrator.runtime import plugins


@pytest.mark.parametrize("module", [find, plugins], ids=["scaffolds", "plug-ins"])
def test_two_searches_read_the_entry_points_once(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def counted(*, group: str) -> EntryPoints:
        reads.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(module, "entry_points", counted)
    module._read.cache_clear()
    for _ in range(2):
        assert find.find("shell") if module is find else plugins.load("sandboxes", "bubblewrap")
    assert len(reads) == 1
