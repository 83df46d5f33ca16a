"""The third-party modules that the dashboard serves are the listed ones, with their licences, and small."""

import re
from hashlib import sha256
from pathlib import Path

from orchestrator.web.files import NAMES, STATIC

VENDOR = STATIC / "vendor"
SERVED = {name: path for name, path in NAMES.items() if name.startswith("vendor/")}
MAX_BYTES = 100_000


def written() -> dict[str, tuple[str, str]]:
    """File → its licences and its digest, from the table in README.md."""
    lines = (VENDOR / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {name: (licences, digest) for name, _, licences, digest in rows if name != "file"}


def test_every_vendored_file_is_the_one_that_is_written_down() -> None:
    digests = {Path(name).name: sha256(path.read_bytes()).hexdigest() for name, path in SERVED.items()}
    assert {name: digest for name, (_, digest) in written().items()} == digests


def test_every_vendored_file_is_small_and_has_its_licence_next_to_it() -> None:
    assert [name for name, path in SERVED.items() if path.stat().st_size > MAX_BYTES] == []
    for name, (licences, _) in written().items():
        texts = re.findall(r"\(([a-z]+\.LICENSE)\)", licences)
        assert texts, f"{name} names no licence"
        assert all((VENDOR / text).stat().st_size > 500 for text in texts), name


def test_nothing_but_what_browsers_load_is_served() -> None:
    assert {Path(name).name for name in SERVED} == {"preact.js", "uplot.js", "uplot.css"}
