"""Small runs for tests: a run with your scaffold and a scripted policy, in one process and a directory of its own.

    async with start_run(scaffolds=[MyAgent], replies=[Reply(text="hi")]) as run:
        await run.wait(await run.publish("tasks/hello"))
        async for trajectory in run.trajectories():
            assert trajectory.succeeded

Everything but the policy is real: PostgreSQL, NATS, orchestrator, gateway, runner, verifier and sandboxes, on free ports. The end of the
context ends exactly the processes that it started and removes the directory. Nothing trains: ready groups wait. The context must be left by
the task that entered it, so enter it in the test, or in a fixture of anyio's pytest plugin. `penstock[embedded]` brings PostgreSQL, and
`penstock[trainer]` the policy's tokenizer, unless `model` names a directory with one.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import tomlkit

from orchestrator.api.arguments import callback, each_of, place, sections, words
from orchestrator.api.connection import connect
from orchestrator.api.run import Run
from orchestrator.api.scaffolds import ScaffoldLike, checked
from orchestrator.app import orchestrate
from orchestrator.bus.feed import in_background
from orchestrator.bus.nats import NatsBus
from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.http_urls import check_http_urls
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.deploy.preflight import check_config, check_sandbox
from orchestrator.deploy.stack import create_run
from orchestrator.gateway.server import Gateway, GatewaySettings
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.pool.engine import Role
from orchestrator.pool.opened import opened
from orchestrator.pool.runs import get_run
from orchestrator.runner.rollout_runner import RunnerSettings, serve_rollouts
from orchestrator.runner.verify_runner import serve_verifications
from orchestrator.runner.worker import WorkerSettings
from orchestrator.runtime import plugins
from orchestrator.runtime.exception_groups import first_error
from orchestrator.runtime.log import quiet
from orchestrator.scripted.reply import Reply, by_turn
from orchestrator.scripted.server import LOGPROB, ScriptedServer
from orchestrator.scripted.services import Services, open_services
from orchestrator.scripted.version import CANARY, publish_version
from orchestrator.settings.config import FILE, Config
from orchestrator.settings.providers import tables

__all__ = ["Reply", "Services", "start_run", "start_services"]

DONE = Reply(text="done")
Settings = Mapping[str, Mapping[str, Any]]
"""Sections of penstock.toml, each with the keys that differ from those of a small run."""
SMALL: Settings = {
    "queue": {"batch_groups": 1, "group_size": 2, "capacity": 1024, "max_attempts": 1},
    "stage": {"max_turns": 40, "max_context": 32_768},
    "sampling": {"max_new_tokens": 4096},
    "rollout": {
        "slots": 4,
        "verify_slots": 2,
        "lease_ttl_s": 10.0,
        "retry_delay_s": 0.1,
        "timeout_s": 300.0,
        "completion_s": 300.0,
        "tool_timeout_s": 60.0,
    },
    "reward": {"speed_weight": 0.0},  # else replays that measure the noise of times run, too
    "sandbox": {"memory_mb": 512, "processes": 64, "cpu_s": 60, "disk_mb": 64},
}


@asynccontextmanager
async def start_services(*, model: str | Path | None = None) -> AsyncIterator[Services]:
    """PostgreSQL and NATS for several runs, in a temporary directory that is removed afterwards. `model`: a policy's directory; only
    its configuration and tokenizer are read. Without it a tiny one is made.

    Raises ArgumentError for a `model` that cannot be used, ValueError if a service cannot be started."""
    async with open_services("penstock-test-", _model(model)) as services:
        yield services


@asynccontextmanager
async def start_run(
    *,
    scaffolds: Sequence[ScaffoldLike] = ("shell",),
    replies: Sequence[Reply] | Callable[[str], Reply] = (DONE,),
    servers: Sequence[str] = (),
    model: str | Path | None = None,
    settings: Settings | None = None,
    sandbox: str = "bubblewrap",
    services: Services | None = None,
) -> AsyncIterator[Run]:
    """A run with its processes, for as long as the context is open.

    `scaffolds`: registered names, paths, or classes with `@scaffold(…)` at the top of a file; rollouts are shared equally among them.
    `replies`: those of the policy in each conversation, in order, the last one again afterwards; or a function from the prompt, as text with
    its special tokens, to the reply; its error ends the context and is raised as it is. `servers`: URLs of rollout servers that serve `model`,
    in place of the scripted one. `settings`: sections of penstock.toml, such as {"queue": {"group_size": 4}}. `sandbox`: the provider.
    `services`: shared ones, of `start_services`.

    A group has two rollouts, speed is not rewarded, and an attempt is not tried again, so that a fault of the scaffold is seen at once: as
    failure_class "infra_failure" with its reason, or "policy_failure" after its first completion. Raises ArgumentError for an argument of
    another type, ValueError, one sentence, for a scaffold, provider or setting that cannot be used.
    """
    own, directory = sections("settings", {} if settings is None else settings), _model(model)
    urls = _urls(servers)
    if urls and directory is None:
        raise ArgumentError("model", "is missing: name the directory of the model that these servers serve")
    if services is not None and not isinstance(services, Services):
        raise ArgumentError("services", f"must be those that `start_services` gives, not {quoted(services)}")
    policy = _policy(replies)
    plugins.load("sandboxes", words("sandbox", sandbox))
    names = _names(scaffolds)
    failed: BaseException | None = None
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(quiet())
            if services is None:
                services = await stack.enter_async_context(start_services(model=directory))
            services = services if directory is None else replace(services, model=directory)
            home = _write(services, names, sandbox, own)
            logprobs = (LOGPROB,) * (len(CANARY) - 1)
            if urls:
                logprobs = await _logprobs(urls[0])
            else:
                await stack.enter_async_context(in_background(policy.fail))
                server = await stack.enter_async_context(ScriptedServer(services.model, policy).serving())
                urls = (server.url,)
            await _start(stack, home, urls, services.model, logprobs)
            run = await stack.enter_async_context(connect(home.file))
            try:
                yield run
            except (anyio.get_cancelled_exc_class(), GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 (raised below; also pytest's skip and fail)
                failed = error  # the task groups would wrap it
    except ExceptionGroup as errors:
        if failed is None:
            raise first_error(errors) from None
    if failed is not None:
        raise failed


def _model(given: str | Path | None) -> Path | None:
    """The directory of a policy's configuration and tokenizer."""
    if given is None:
        return None
    directory = place("model", given)
    for file in ("config.json", "tokenizer.json"):
        if not (directory / file).is_file():
            raise ArgumentError(
                "model", f"{quoted(str(directory))} has no {file}: name the directory of a policy"
            )
    return directory.resolve()


def _names(scaffolds: Sequence[ScaffoldLike]) -> tuple[str, ...]:
    names = each_of("scaffolds", scaffolds, checked)
    if not names:
        raise ArgumentError("scaffolds", "must name at least one scaffold")
    return names


def _urls(servers: Sequence[str]) -> tuple[str, ...]:
    urls = each_of("servers", servers, words)
    try:
        check_http_urls(urls, "a rollout server")
    except ValueError as error:
        raise ArgumentError("servers", str(error)) from None
    return urls


def _policy(replies: Sequence[Reply] | Callable[[str], Reply]) -> "_Policy":
    if callable(replies):
        return _Policy(callback("replies", replies, takes=1))
    found = each_of("replies", replies, _reply)
    if not found:
        raise ArgumentError("replies", "must have at least one reply, such as Reply(text='done')")
    return _Policy(by_turn(found))


def _reply(argument: str, given: object) -> Reply:
    if not isinstance(given, Reply):
        raise ArgumentError(
            argument, f"must be Reply values, or a function that gives them, not {quoted(given)}"
        )
    return given


class _Policy:
    """The function of a test that gives replies. It runs in a request of the rollout server, where its error would become a status of HTTP that the
    gateway tries again."""

    def __init__(self, replies: Callable[[str], Reply]) -> None:
        self._replies = replies
        self._error: BaseException | None = None
        self._failed = anyio.Event()

    def __call__(self, prompt: str) -> Reply:
        try:
            reply = self._replies(prompt)
            if not isinstance(reply, Reply):
                raise ArgumentError("replies", f"must give a Reply, not {quoted(reply)}")
        except BaseException as error:
            self._error = self._error or error
            self._failed.set()
            raise
        return reply

    async def fail(self) -> None:
        """Raise the first error of the function, once there is one."""
        await self._failed.wait()
        assert self._error is not None
        raise self._error


def _write(services: Services, scaffolds: Sequence[str], sandbox: str, settings: Settings) -> Home:
    """A new run's directory with its penstock.toml. ConfigurationError for a wrong setting."""
    name = f"test-{secrets.token_hex(4)}"
    directory = services.directory / name
    directory.mkdir(mode=0o755)
    own: Settings = {
        "run": {"name": name},
        "policy": {"model": str(services.model)},
        "services": {"database_url": services.database_url, "nats_url": services.nats_url},
        "rollout": {"scaffolds": dict.fromkeys(scaffolds, 1.0)},
        "sandbox": {"provider": sandbox},
    }
    document: dict[str, dict[str, Any]] = {}
    for layer in (SMALL, own, settings):
        for section, keys in layer.items():
            document.setdefault(section, {}).update(keys)
    (directory / FILE).write_text(tomlkit.dumps(document), encoding="utf-8")
    home = Home.at(directory)
    check_config(home.connected(), plugins.names("scaffolds"))
    return home


async def _logprobs(server: str) -> tuple[float, ...]:
    """The canary's logprobs as a given server has them, before it serves the run."""
    async with RolloutServerClient(server) as client:
        return tuple(await client.prompt_logprobs(CANARY))


async def _start(
    stack: AsyncExitStack, home: Home, servers: Sequence[str], model: Path, logprobs: Sequence[float]
) -> None:
    """Start orchestrator, gateway, runner and verifier as tasks of this process. They end with the stack."""
    _, config = await create_run(home.connected())
    await check_sandbox(config.sandbox.provider, tables(config.sandbox))
    directory = home.file.parent
    engine = await stack.enter_async_context(
        opened(config.services.database_url, Role.GATEWAY, size=8, name="penstock-gateway")
    )
    async with opened(config.services.database_url, Role.TRAINER, name="penstock-trainer") as trainer:
        async with trainer.connect() as connection:
            run = await get_run(connection, config.run.name)
        version = directory / "version-0"
        version.mkdir()
        for file in model.iterdir():  # given servers may load them
            if file.name != "manifest.json":
                (version / file.name).symlink_to(file.resolve())
        await publish_version(trainer, run.run_id, version, logprobs)
    bus = await stack.enter_async_context(
        NatsBus.connect(config.services.nats_url, name=f"gateway-{config.run.name}")
    )
    await bus.ensure_streams()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(tasks.cancel_scope.cancel)
    tasks.start_soon(orchestrate, config)
    settings = GatewaySettings(
        run=config.run.name,
        config=config,
        model_dir=model,
        server_urls=tuple(servers),
        socket_path=directory / "gateway" / "gateway.sock",
        journal_dir=home.journal("gateway"),
        admin_secret_file=directory / "secret",
    )
    gateway = await stack.enter_async_context(Gateway.open(settings, engine, bus, run.run_id))
    runner = RunnerSettings(
        worker=_worker(home, config, "runner", config.rollout.slots),
        gateway_url=gateway.url,
        gateway_secret=settings.admin_secret_file,
        gateway_socket=settings.socket_path,
    )
    workers = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(workers.cancel_scope.cancel)
    workers.start_soon(partial(serve_rollouts, runner))
    workers.start_soon(
        partial(serve_verifications, _worker(home, config, "verifier", config.rollout.verify_slots))
    )


def _worker(home: Home, config: Config, name: str, slots: int) -> WorkerSettings:
    return WorkerSettings(
        run=config.run.name,
        database_url=config.services.database_url,
        nats_url=config.services.nats_url,
        journal=home.journal(name),
        provider=config.sandbox.provider,
        slots=slots,
        owner=f"{home.workers}{name}",
        config=config,
    )
