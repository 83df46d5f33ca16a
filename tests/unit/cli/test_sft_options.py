"""Options of `penstock sft`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import sft
from orchestrator.cli.main import app
from orchestrator.cli.sft import read_shares


def test_shares_of_scaffolds_are_read_as_written() -> None:
    assert read_shares("shell=0.85, mini-swe-agent=0.15") == {"shell": 0.85, "mini-swe-agent": 0.15}
    assert read_shares("shell") == {"shell": 1.0}
    for share in ("much", "1_0", "nan", "1e400", "-1"):
        with pytest.raises(
            ValueError, match=f"'shell={share}' is not of the form name=share: the share must be"
        ):
            read_shares(f"shell={share}")
    with pytest.raises(ValueError, match="'shell' has two shares"):
        read_shares("shell=1,shell=2")


@pytest.mark.parametrize(
    ("given", "passed"), [((), []), (("--label", ""), ["--label", ""]), (("--label", "a"), ["--label", "a"])]
)
def test_an_empty_label_is_a_filter_and_no_label_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], passed: list[str]
) -> None:
    (tmp_path / "penstock.toml").write_text('[run]\nname = "run"\n')
    options: list[str] = []

    def exported(home: object, out: Path, filters: list[str]) -> dict[str, object]:
        options.extend(filters)
        raise ValueError("as far as this test goes")

    monkeypatch.setattr(sft, "export_from", exported)
    CliRunner().invoke(app, ["sft", "export", "-c", str(tmp_path), "--out", str(tmp_path / "out"), *given])
    assert options == passed
