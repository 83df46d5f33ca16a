"""`penstock up` reports a fault at the start in one sentence with exit status 1, and leaves nothing running."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.deploy.embedded.nats import EmbeddedNats
from tests.e2e.stack_rig import Stack

pytestmark = [pytest.mark.services, pytest.mark.timeout(400), pytest.mark.tier("stacks")]

UNUSED = "127.0.0.1:9"


def refused(stack: Stack, *options: str, **environment: str) -> str:
    """The one sentence with which `penstock up` refuses to start."""
    ended = stack.penstock("up", *options, timeout_s=120, **environment)
    assert ended.returncode == 1, ended
    sentence = ended.stderr.splitlines()[-1]
    # Before it there may be lines about the services that were started and stopped again.
    assert ended.stderr.count("penstock: ") == 1 and sentence.startswith("penstock: "), ended.stderr
    assert "Traceback" not in ended.stderr
    assert stack.left_running() == []
    return sentence.removeprefix("penstock: ")


@pytest.fixture
def broken_model(stack: Stack, model: Path) -> Path:
    """A copy of the policy, to be broken."""
    return Path(shutil.copytree(model, stack.directory / "broken"))


def test_a_model_directory_without_tokenizer_or_of_another_vocabulary(
    stack: Stack, model: Path, broken_model: Path
) -> None:
    stack.configure(broken_model, batches=1)
    config = json.loads((broken_model / "config.json").read_text())
    size = config["vocab_size"]
    (broken_model / "config.json").write_text(json.dumps({**config, "vocab_size": size - 3}))
    sentence = refused(stack)
    assert f"the tokenizer makes {size} ids and the model knows {size - 3}" in sentence
    assert str(broken_model) in sentence
    (broken_model / "tokenizer.json").unlink()
    assert f"{broken_model} has no tokenizer.json" in refused(stack)
    shutil.rmtree(broken_model)
    assert f"directory {broken_model}" in refused(stack)


def test_a_taken_port(stack: Stack, model: Path) -> None:
    stack.configure(model, batches=1)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        sentence = refused(stack, "--set", f"gateway.port={port}")
    assert f"127.0.0.1:{port}" in sentence and "set gateway.port" in sentence


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        (
            "rollout.scaffolds={shel=1.0}",
            "unknown scaffold 'shel'; known: aider, claude-code, codex, mini-swe-agent, nop, opencode, opencode-anthropic,"
            " opencode-responses, oracle, qwen-code, shell",
        ),
        (
            "sandbox.provider=docker",
            "unknown provider 'docker'; known: bubblewrap, container, kubernetes, local",
        ),
        ("queue.policy=lifo", "queue policy 'lifo' is unknown; known: fifo, greedy, windowed"),
        ("queue.group_sice=2", "queue.group_sice is not a known key: did you mean group_size?"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(
    stack: Stack, model: Path, assignment: str, sentence: str
) -> None:
    stack.configure(model, batches=1)
    assert sentence in refused(stack, "--set", assignment)


def test_a_database_at_another_revision(
    stack: Stack, model: Path, empty_database_url: str, nats_server: EmbeddedNats
) -> None:
    stack.configure(model, batches=1)
    sentence = refused(stack, DATABASE_URL=empty_database_url, NATS_URL=nats_server.url)
    assert "the database is at revision none" in sentence and "run `alembic upgrade head`" in sentence


def test_an_unreachable_postgres(stack: Stack, model: Path, nats_server: EmbeddedNats) -> None:
    stack.configure(model, batches=1)
    url = f"postgresql://penstock:secret@{UNUSED}/penstock"
    sentence = refused(stack, DATABASE_URL=url, NATS_URL=nats_server.url)
    assert f"PostgreSQL at {UNUSED}/penstock cannot be used" in sentence and "secret" not in sentence


def test_an_unreachable_nats_and_one_that_is_too_old(stack: Stack, model: Path, database_url: str) -> None:
    stack.configure(model, batches=1)
    sentence = refused(stack, DATABASE_URL=database_url, NATS_URL=f"nats://{UNUSED}")
    assert f"NATS does not answer at {UNUSED}" in sentence
    with an_old_nats() as url:
        sentence = refused(stack, DATABASE_URL=database_url, NATS_URL=url)
    assert "is version 2.9.10, and 2.10 or newer is needed" in sentence


@contextmanager
def an_old_nats() -> Iterator[str]:
    """Something that greets as a server of 2.9 and answers the client's first ping."""
    info = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576,"headers":true}\r\n'
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # closed
                with connection:
                    connection.sendall(info)
                    while received := connection.recv(4096):
                        if b"PING" in received:
                            connection.sendall(b"PONG\r\n")

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        try:
            yield f"nats://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
