"""The earlier version of a file that a solution changes lies at its path, and nowhere else."""

import pytest

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.probing import Left
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.vetting.leaks import Readable, search
from orchestrator.tasks.vetting.secrets import secrets_of
from orchestrator.vetting.leak import solved_of

CONFIG = b"LIMIT_OF_ROWS = 40817\nNAME_OF_DEPOT = 'depot-40817'\n"
LEFT = Left(answer="", artifacts=[ArtifactFile(path="config.py", body=b64(CONFIG))])


@pytest.mark.parametrize("work", ["/app", "/workspace/project"])
def test_a_copy_of_a_new_file_in_another_directory_is_a_suspect(work: str) -> None:
    copy = f"{work}/backup/config.py"
    readable = Readable(files={copy: CONFIG}, variables={}, work=work)
    solved = solved_of(LEFT, readable)
    task = Task.from_files({"task.toml": b"", "instruction.md": b"Do it.", "tests/test.sh": b"exit 0"})
    assert not solved.before
    assert [suspect.path for suspect in search(secrets_of(task, solved), readable).suspects] == [copy]


@pytest.mark.parametrize("path", ["/app/config.py", "/workspace/project/config.py"])
def test_a_work_directory_is_read_by_both_of_its_names(path: str) -> None:
    readable = Readable(files={path: CONFIG}, variables={}, work="/workspace/project")
    assert solved_of(LEFT, readable).before == {path: CONFIG}
