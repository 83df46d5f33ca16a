"""The probes that leave work of the right form with nothing in it."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.probing import Left
from orchestrator.tasks.probes import agent, probe

BODIES = {"deep/rows.csv": "x,y\r\n1,2\r\n", "one.csv": "x\n", "a 'word'": "hi\n", "-n": "\0"}


def left(name: str, work: Path) -> dict[str, bytes]:
    """The files that a probe leaves where the solution leaves `BODIES`."""
    solved = Left(
        answer="",
        artifacts=[ArtifactFile(path=path, body=b64(body.encode())) for path, body in BODIES.items()],
    )
    command = probe(name).acts(solved.target, headers=solved.headers)
    subprocess.run(["bash", "-ec", command], cwd=work, check=True, timeout=60)
    return {str(path.relative_to(work)): path.read_bytes() for path in work.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [each.name for each in agent.EMPTY])
def test_every_file_of_the_solution_is_left(tmp_path: Path, name: str) -> None:
    assert left(name, tmp_path).keys() == BODIES.keys()


def test_a_table_with_rows_keeps_its_header_alone(tmp_path: Path) -> None:
    found = left("leaves tables without rows", tmp_path)
    assert found == dict.fromkeys(BODIES, b"\n") | {"deep/rows.csv": b"x,y\n"}


def test_lists_and_objects_are_json(tmp_path: Path) -> None:
    assert {json.dumps(json.loads(body)) for body in left("leaves empty lists", tmp_path).values()} == {"[]"}
    assert {json.dumps(json.loads(body)) for body in left("leaves empty objects", tmp_path).values()} == {
        "{}"
    }


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2, 3, 4)])
def test_an_array_without_rows_is_close_to_any_other(tmp_path: Path, shape: tuple[int, ...]) -> None:
    left("leaves arrays without rows", tmp_path)
    found = np.load(tmp_path / "a 'word'")
    assert found.size == 0 and np.allclose(found, np.ones(shape))
