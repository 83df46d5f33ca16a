"""penstock cluster: refuses in one sentence before anything is written, and never overwrites a file that it did not write."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.cluster.render import Target
from orchestrator.deploy.cluster.write import MARK, write
from tests.unit.cluster.rendered import CLUSTER, files

run = CliRunner()


def test_a_render_writes_the_files_and_says_where_to_begin(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run.invoke(
        app, ["cluster", "render", str(CLUSTER / "topology.toml"), "-t", "kubernetes", "-o", str(out)]
    )
    assert done.exit_code == 0 and "begin with its README.md" in done.stdout
    assert {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()} == {
        *files("topology", "kubernetes"),
        MARK,
    }
    checked = run.invoke(app, ["cluster", "check", str(out)])
    assert checked.exit_code == 0 and "29 rules hold" in checked.stdout
    (out / "45-web.yaml").write_text(
        (out / "45-web.yaml").read_text().replace("penstock:0.1.0", "penstock:latest")
    )
    broken = run.invoke(app, ["cluster", "check", str(out), "--kubernetes", "1.34"])
    assert broken.exit_code == 1 and "can change: name a digest" in broken.stdout


def test_a_contradictory_topology_writes_nothing(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text((CLUSTER / "topology.toml").read_text().replace("ranks = 4", "ranks = 16"))
    for target in Target:
        done = run.invoke(app, ["cluster", "render", str(wrong), "-t", target, "-o", str(tmp_path / "out")])
        assert done.exit_code == 1 and isinstance(done.exception, ConfigurationError)
        assert "trainer.ranks = 16 needs 16 GPUs, but trainer.nodes × gpus_per_node = 1 × 4 = 4" in str(
            done.exception
        )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["wrong.toml"]


def test_a_directory_that_it_did_not_write_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="was not written by `penstock cluster render`"):
        write({"a.yaml": "a: 1\n"}, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    write({"a.yaml": "a: 1\n"}, tmp_path, force=True)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_a_file_that_was_changed_by_hand_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write({"a.yaml": "a: 1\n", "b/c.yaml": "c: 1\n"}, out)
    (out / "a.yaml").write_text("a: mine\n")
    with pytest.raises(ConfigurationError, match=r"a\.yaml was changed since it was rendered"):
        write({"a.yaml": "a: 2\n"}, out)
    assert (out / "b" / "c.yaml").exists() and (out / "a.yaml").read_text() == "a: mine\n"


def test_a_render_again_leaves_no_file_of_the_last_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write({"a.yaml": "a: 1\n", "b/c.yaml": "c: 1\n"}, out)
    write({"a.yaml": "a: 2\n", "run.sbatch": "#!/bin/sh\n"}, out)
    assert (out / "a.yaml").read_text() == "a: 2\n" and not (out / "b" / "c.yaml").exists()
    assert subprocess.run([out / "run.sbatch"]).returncode == 0


def test_a_render_is_the_same_again() -> None:
    from orchestrator.deploy.cluster.reading import load
    from orchestrator.deploy.cluster.render import render

    for target in Target:
        assert render(load(CLUSTER / "examples" / "node8.toml"), target) == files("node8", target)


def test_a_topology_is_checked_without_a_target() -> None:
    done = run.invoke(app, ["cluster", "check", str(CLUSTER / "examples" / "nodes64.toml")])
    assert done.exit_code == 0 and "hold together" in done.stdout
