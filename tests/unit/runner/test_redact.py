"""The session's token in files that an attempt left."""

from pathlib import Path

import pytest

from orchestrator.runner import redact
from orchestrator.runner.redact import redacted_changes
from sandboxes.base import Artifacts, File, StoredFile

TOKEN = "secret-0123456789"


@pytest.mark.parametrize("piece", [1, 7, 17, 64, 1 << 20])
def test_a_stored_file_loses_the_token_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(redact, "_PIECE", piece)
    secret = TOKEN.encode()
    content = b"".join(
        [secret, b"a" * 5, secret + secret, b"secret-012", secret, b"b" * 100, secret[:-1], secret]
    )
    source = tmp_path / "file"
    source.write_bytes(content)
    changed = Artifacts(
        added={"a": StoredFile(source=source, size=len(content), mode=0o600)},
        modified={"b": File(b"x" + secret, 0o755)},
        deleted=(),
        refused=(),
        complete=True,
        links={"c": TOKEN},
    )
    found = redacted_changes(changed, TOKEN)
    assert found.added["a"].data == content.replace(secret, b"x" * len(secret))
    assert (found.modified["b"].data, found.modified["b"].mode) == (b"x" + b"x" * len(secret), 0o755)
    assert found.links["c"] == "x" * len(TOKEN)
