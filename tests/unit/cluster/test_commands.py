"""The real programs accept every rendered command line, and every key that it sets is a real one."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest
import typer
import yaml
from torch.distributed.run import get_args_parser

from orchestrator.cli.main import app
from orchestrator.deploy.cluster.inline import login
from orchestrator.deploy.cluster.render import Target
from orchestrator.settings.config import Config, load
from tests.unit.cli.test_help import UsageError, parse
from tests.unit.cluster.rendered import EXAMPLES, files, objects, topology
from trainer.__main__ import options
from trainer.serving.settings import parse_arguments

pytestmark = pytest.mark.tier("cluster")

SGLANG = {
    "--model-path", "--host", "--port", "--tp-size", "--dp-size", "--pp-size", "--nnodes", "--node-rank", "--dist-init-addr",
    "--enable-metrics", "--skip-server-warmup", "--mem-fraction-static",
}  # fmt: skip
"""Options of `sglang.launch_server` 0.5.23 that are used; the tier `sglang` runs the real one."""
VARIABLE = re.compile(r"\$\{NODES\[\d+\]\}|\$\(?[A-Z_]+\)?|%d")


def kubernetes(name: str) -> Iterator[list[str]]:
    def walk(node: object) -> Iterator[list[str]]:
        if isinstance(node, dict):
            if "command" in node and "args" in node:
                yield [*node["command"], *node["args"]]
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    yield from walk(objects(name))


def slurm(name: str) -> Iterator[list[str]]:
    script = next(text for file, text in files(name, "slurm").items() if file.endswith(".sbatch"))
    for line in script.splitlines():
        if line.startswith("process "):
            parts = shlex.split(line)[9:]
            while parts[0] == "env" or re.match(r"[A-Z_]+=", parts[0]):
                parts = parts[1:]
            yield parts


def systemd(name: str) -> Iterator[list[str]]:
    for file, text in files(name, "systemd").items():
        if file.endswith(".service"):
            for line in text.splitlines():
                if line.startswith(("ExecStart=", "ExecStartPre=")):
                    yield shlex.split(line.partition("=")[2])


def compose(name: str) -> Iterator[list[str]]:
    for file, text in files(name, "compose").items():
        if file.endswith("compose.yaml"):
            for service in yaml.load(text, Loader=yaml.CSafeLoader)["services"].values():
                yield [str(part).replace("$$", "$") for part in service["command"]]


LINES = {"kubernetes": kubernetes, "slurm": slurm, "systemd": systemd, "compose": compose}


@cache
def check(argv: tuple[str, ...]) -> str:
    """The program that the line starts; a wrong option or key is an error."""
    program = argv[0].rpartition("/")[2]
    arguments = ["1" if VARIABLE.fullmatch(part) else VARIABLE.sub("host", part) for part in argv[1:]]
    if program == "penstock":
        command = typer.main.get_command(app)
        context = command.make_context("penstock", list(arguments))
        sets: list[str] = []
        with context:
            while True:
                name, found, rest = context.command.resolve_command(  # type: ignore[attr-defined]
                    context, context._protected_args + context.args
                )
                assert name is not None and found is not None, argv
                context = found.make_context(name, rest, parent=context)
                sets += context.params.get("overrides") or ()
                if not context._protected_args + context.args:
                    break
        load(None, sets)
        return f"penstock {name}"
    if program == "torchrun":
        parsed = get_args_parser().parse_args(arguments)
        assert parsed.module and parsed.training_script == "trainer"
        options().parse_args(parsed.training_script_args)
        return "torchrun"
    if program == "python3" and arguments[:2] == ["-m", "trainer.serving"]:
        parse_arguments(arguments[2:])
        assert "--seed" not in arguments  # a server that starts again would repeat its samples
        return "trainer.serving"
    if program == "python3" and arguments[:2] == ["-m", "sglang.launch_server"]:
        assert {part for part in arguments if part.startswith("--")} <= SGLANG
        return "sglang"
    assert (
        program in ("alembic", "chown", "install", "nats-server")
        or arguments[0].startswith("--config")
        or argv[0] in ("-c", "--config")
    ), argv
    return program


@pytest.mark.parametrize("target", LINES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_command_line_is_one_of_the_real_programs(name: str, target: str) -> None:
    started = {check(tuple(line)) for line in LINES[target](name)}
    assert {
        f"penstock {role}" for role in ("orchestrator", "gateway", "runner", "verifier", "web")
    } <= started
    assert ("torchrun" in started) == (topology(name).trainer.nodes > 1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_processes_of_a_run_on_hosts_have_one_name(name: str) -> None:
    lines = [line for line in systemd(name) if line[1] in ("orchestrator", "gateway", "runner", "verifier")]
    names = [line[line.index("--name") + 1] for line in lines]
    assert len(set(names)) == len(names)
    for line, own in zip(lines, names, strict=True):
        assert own.partition("-")[0] == line[1]
        assert any(part.startswith(f"metrics.ports.{own}=") for part in line)


@pytest.mark.parametrize("kind", ["gateway", "orchestrator"])
def test_a_process_is_not_called_as_one_of_another_kind(kind: str) -> None:
    with pytest.raises(
        UsageError, match=f"'runner-2' is not a name for a process of this kind: use {kind}, or {kind}-2"
    ):
        parse([kind, "--name", "runner-2"])
    parse([kind, "--name", f"{kind}-2"])


@pytest.mark.parametrize("target", ["systemd", "compose"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_settings_are_those_of_penstock(name: str, target: str) -> None:
    texts = [text for file, text in files(name, target).items() if file.endswith("penstock.toml")]
    assert texts
    for text in texts:
        config = Config.model_validate(tomllib.loads(text))
        assert len(config.servers.urls) == sum(pool.replicas for pool in topology(name).servers)


@pytest.mark.parametrize("target", Target)
@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_secret_is_in_any_file(name: str, target: str) -> None:
    for text in files(name, target).values():
        # Placeholders that a person fills in, and values that a shell inserts when it runs.
        assert not login(re.sub(r"://(penstock:)?(\$token|PASSWORD)@", "://", text))
        assert ":latest" not in text
