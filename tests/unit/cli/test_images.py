"""`penstock images`: what it prints, and what it refuses in one sentence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.images import app
from orchestrator.contracts.errors import ConfigurationError
from tests.unit.sandboxes.images.archives import BASE, layer, member, oci


@pytest.fixture
def run(tmp_path: Path) -> str:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "penstock.toml").write_text(
        '[run]\nname = "first"\n[sandbox.images]\ndirectory = ".penstock/images"\n'
    )
    return str(tmp_path / "run")


def output(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_an_image_is_imported_listed_exported_and_pruned(run: str, tmp_path: Path) -> None:
    place = oci(tmp_path / "oci", layer([*BASE, member("app/f", b"1")]))
    reference = output("import", str(place), "--name", "mine:1", "-c", run).strip()
    assert reference.startswith("sha256:") and (tmp_path / "run/.penstock/images/images").is_dir()
    (line,) = output("list", "-c", run, "--json").splitlines()
    assert json.loads(line)["names"] == ["mine:1"] and json.loads(line)["digest"] == reference
    assert "mine:1" in output("list", "-c", run)
    output("export", "mine:1", str(tmp_path / "mine.tar"), "-c", run)
    assert output("import", str(tmp_path / "mine.tar"), "-c", run, "--json").count(reference) == 1
    assert output("prune", "-c", run).startswith("removed 0 images")
    assert output("prune", "mine:1", "-c", run).startswith("removed 1 image,")
    assert output("list", "-c", run, "--json") == ""


def test_a_volume_that_programs_cannot_write_is_named(run: str, tmp_path: Path) -> None:
    config = {
        "Volumes": {"/data": {}, "/etc/x": {}, "/srv": {}, "/srv/a": {}, "/app/x": {}},
        "Env": ["TOOLS=/srv/tools"],
    }
    place = oci(tmp_path / "oci", layer([*BASE, member("srv/tools/tool", b"1")]), config=config)
    result = CliRunner().invoke(app, ["import", str(place), "-c", run])
    named = [line.split()[1] for line in result.output.splitlines() if line.startswith("VOLUME ")]
    assert named == ["/etc/x", "/srv"]
    found = json.loads(output("import", str(place), "-c", run, "--json"))
    assert found["volumes"] == sorted(config["Volumes"]) and found["read_only_volumes"] == named


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("import", "absent"), "does not exist"),
        (("prune", "absent"), "penstock images list"),
        (("export", "absent", "file"), "penstock images list"),
        (("bootstrap", "python:3.11"), "debootstrap makes"),
    ],
)
def test_a_mistake_is_one_sentence(run: str, words: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        output(*words, "-c", run)


def test_without_a_directory_the_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[run]\nname = "first"\n')
    with pytest.raises(ConfigurationError, match=r"sandbox\.images\.directory is empty"):
        output("list", "-c", str(tmp_path))
