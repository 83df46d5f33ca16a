"""The rounds in which a sandbox sends its files: the places of the work come first, and only what lies elsewhere may go unread."""

from typing import Any, cast

import pytest

from orchestrator.vetting import readable
from orchestrator.vetting.collecting import FRAMES
from sandboxes.base import ExecResult, KilledBy, Sandbox

EACH = 1000


class Sends:
    """Stands for a sandbox that sends these files, of `EACH` bytes, after the one that is named."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def path(self, inside: str) -> str:
        return inside

    async def exec(self, argv: list[str], **_: Any) -> ExecResult:
        most, after = int(argv[6]), argv[7]
        first = self.paths.index(after) + 1 if after else 0
        sent = FRAMES + b"".join(f"{path}\0{EACH}\0".encode() + bytes(EACH) for path in self.paths[first:])
        return ExecResult(
            exit_code=0,
            stdout=sent[:most],
            stderr=b"",
            truncated=False,
            killed_by=KilledBy.NONE,
            wall_s=0.0,
            cpu_s=0.0,
        )


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("work", "elsewhere", "unread", "noted"),
    [(10, 0, False, False), (10, 20, False, False), (10, 200, False, True), (200, 10, True, False)],
)
async def test_only_files_elsewhere_may_go_unread(
    monkeypatch: pytest.MonkeyPatch, work: int, elsewhere: int, unread: bool, noted: bool
) -> None:
    monkeypatch.setattr(readable, "ROUND_BYTES", 5 * EACH)
    monkeypatch.setattr(readable, "_ROOM", 0)
    monkeypatch.setattr(readable, "MAX_BYTES", 50 * EACH)
    paths = [f"/app/{n}" for n in range(work)] + [f"/opt/python/{n}" for n in range(elsewhere)]
    files, why, note = await readable._files(cast(Sandbox, Sends(paths)), images=True)
    assert (bool(why), bool(note)) == (unread, noted), (why, note)
    assert set(paths[:work]) <= set(files) or unread
    if not (unread or noted):
        assert set(files) == set(paths)
