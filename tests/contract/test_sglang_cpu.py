"""ops/sglang_cpu/serve refuses at once, in one sentence, faults that SGLang would only log before it hangs or dies."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.contract.rollout_server import REPOSITORY

pytestmark = pytest.mark.sglang


def refused(*arguments: str) -> str:
    command = [str(REPOSITORY / "ops" / "sglang_cpu" / "serve"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_taken_port_is_named_in_one_sentence(models: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        error = refused("--model-path", str(models / "model0"), "--port", str(port))
    assert f"port {port} on 127.0.0.1 is taken" in error


def test_a_directory_without_a_model_is_named_in_one_sentence(tmp_path: Path) -> None:
    assert f"'{tmp_path}' has no config.json" in refused("--model-path", str(tmp_path))
