"""`penstock run pause | resume | cancel | mix`: the commands of the dashboard's Queue page, each a row of `actions` with person and reason.
`penstock run retry`, too, is such a row: the trainer reads it at every start."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from orchestrator.cli.dead import NO_REASON, ReasonOption
from orchestrator.cli.options import HERE, ID, ConfigOption, JsonOption
from orchestrator.cli.terminal import plain
from orchestrator.contracts.numbers import real
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.home import Home
from orchestrator.runtime.person import current_user
from orchestrator.settings.config import Config, effective

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.pool.runs import StoredRun

T = TypeVar("T")

YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for confirmation. Without a terminal the command never asks."
    ),
]


def pause(
    config: ConfigOption = HERE,
    reason: ReasonOption = NO_REASON,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dispatch no further training group; dispatched groups run to their end, which drains the run. Evaluations continue."""
    from orchestrator.pool import steer

    config_ = Home.at(config).reading()
    _confirm(
        "Pause admission? No further training group is dispatched; what is dispatched runs to its end.", yes
    )
    left = _order(
        config_, lambda connection, run: steer.pause(connection, run.run_id, current_user(), reason)
    )
    _say(as_json, "pause", config_, steer.paused(left), rollouts_left=left)


def resume(
    config: ConfigOption = HERE,
    reason: ReasonOption = NO_REASON,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Dispatch accepted groups again, after a pause."""
    from orchestrator.pool import steer

    config_ = Home.at(config).reading()
    _confirm("Resume admission? Accepted groups are dispatched again.", yes)
    _order(config_, lambda connection, run: steer.resume(connection, run.run_id, current_user(), reason))
    _say(as_json, "resume", config_, steer.RESUMED)


def cancel(
    group: Annotated[int, typer.Argument(parser=ID, metavar="GROUP", help="The number of an open group.")],
    config: ConfigOption = HERE,
    reason: ReasonOption = NO_REASON,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """End a group as filtered (cancelled): its running rollouts lose their leases, and it is never trained. This cannot be undone."""
    from orchestrator.pool import steer

    config_ = Home.at(config).reading()
    _confirm(
        f"Cancel group {group}? Its rollouts under way lose their leases, and it is never trained. This cannot be undone.",
        yes,
    )
    before = _order(
        config_, lambda connection, run: steer.cancel(connection, run.run_id, group, current_user(), reason)
    )
    _say(as_json, "cancel", config_, steer.cancelled(group), group=group, was=before.value)


def mix(
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOMAIN=WEIGHT…", help="The weight of every domain of the stage, on any scale."
        ),
    ] = None,
    configured: Annotated[
        bool, typer.Option("--configured", help="Restore the weights of the configuration.")
    ] = False,
    config: ConfigOption = HERE,
    reason: ReasonOption = NO_REASON,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the weights of domains for groups dispatched from now on, in the current stage; without weights: show them."""
    from orchestrator.pool import steer

    if weights and configured:
        raise ValueError("give weights or --configured, not both")
    given = read_weights(weights or [])
    config_ = Home.at(config).reading()
    if not given and not configured:
        _show_mix(config_, as_json)
        return
    _confirm("Set these weights? They hold for groups dispatched from now on, while this stage is on.", yes)
    wanted = given or None

    async def work(connection: "AsyncConnection", run: "StoredRun") -> None:
        stage = Config.from_json(run.config).stage
        await steer.reweigh(connection, run.run_id, stage, wanted, current_user(), reason)

    _order(config_, work)
    _say(as_json, "mix", config_, steer.reweighed(wanted), domains=wanted)


def retry(config: ConfigOption = HERE, reason: ReasonOption = NO_REASON, as_json: JsonOption = False) -> None:
    """Let the trainer continue that halts because of quarantined batches: at its next start, whatever starts it."""
    from orchestrator.pool.quarantine import permit

    config_ = Home.at(config).reading()
    bad = _order(config_, lambda connection, run: permit(connection, run.run_id, current_user(), reason))
    sentence = (
        f"The trainer continues at its next start: quarantined batches no longer count ({bad} in a row)."
    )
    _say(as_json, "retry", config_, sentence, quarantined=bad)


def read_weights(given: list[str]) -> dict[str, float]:
    """`coding=2` as numbers from 0. Raises ValueError, one sentence, for any other form.

    >>> read_weights(["coding=2", "general=0.5"])
    {'coding': 2.0, 'general': 0.5}
    """
    found: dict[str, float] = {}
    for each in given:
        name, separator, number = each.partition("=")
        if not separator or not name:
            raise ValueError(f"{quoted(each)} is not of the form DOMAIN=WEIGHT, such as coding=2")
        try:
            weight = real(number, least=0)
        except ValueError as error:
            raise ValueError(f"the weight of {quoted(name)} {error}") from None
        if name in found:
            raise ValueError(f"the domain {quoted(name)} has two weights: give it one")
        found[name] = weight
    return found


def _order(config: Config, work: "Callable[[AsyncConnection, StoredRun], Awaitable[T]]") -> T:
    """`work` in one transaction on the configured run. Raises ConfigurationError if the current state does not allow it."""
    from orchestrator.pool.opened import opened
    from orchestrator.pool.runs import get_run
    from orchestrator.pool.transact import once

    async def ordered(connection: "AsyncConnection") -> T:
        return await work(connection, await get_run(connection, config.run.name))

    async def run() -> T:
        async with opened(config.services.database_url, name="penstock-run") as engine:
            return await once(engine, ordered, at="person.commit")

    return anyio.run(run)


def _show_mix(config: Config, as_json: bool) -> None:
    """The shares of the current stage, as on the dashboard's Queue page."""
    from dataclasses import asdict

    from orchestrator.cli import tables
    from orchestrator.cli.reading import reading
    from orchestrator.queries import queue
    from orchestrator.scheduling.admission import QueueSettings

    async def read() -> queue.Queue:
        async with reading(config, "run") as reader:
            run_config = effective(reader.run.config, config)
            return await reader.ask(
                lambda connection: queue.queue(
                    connection, reader.run, run_config, QueueSettings.of(run_config)
                )
            )

    found = anyio.run(read)
    if as_json:
        typer.echo(json.dumps({"stage": found.stage, "domains": [asdict(each) for each in found.mix]}))
        return
    rows = [(each.domain, f"{100 * each.share:.1f} %", each.served, each.waiting) for each in found.mix]
    tables.print_rows(["domain", f"share of {found.stage}", "served", "waiting"], rows)


def at_terminal() -> bool:
    """Whether a person can be prompted."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _confirm(question: str, yes: bool) -> None:
    """Prompt the person at a terminal, as the dashboard does. Raises typer.Abort (exit status 1) on no."""
    if not yes and at_terminal():
        typer.confirm(plain(question), abort=True, err=True)


def _say(as_json: bool, order: str, config: Config, sentence: str, **more: Any) -> None:
    """The result: the dashboard's sentence, or an object."""
    if as_json:
        typer.echo(json.dumps({"order": order, "run": config.run.name, **more, "done": sentence}))
    else:
        typer.echo(plain(sentence))


def register(run: typer.Typer) -> None:
    """Add these commands to `penstock run`."""
    for command in (pause, resume, cancel, mix, retry):
        run.command()(command)
