"""penstock show: a rollout with its conversation, a group side by side, a batch with its train steps."""

import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import msgspec
import typer

from orchestrator.cli import show_text, tables
from orchestrator.cli.options import ATTEMPT, COUNTER, HERE, ID, ConfigOption, JsonOption, path
from orchestrator.cli.reading import reading
from orchestrator.cli.terminal import plain, plain_json
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import Home

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from orchestrator.queries.steps import StepText

app = typer.Typer(no_args_is_help=True)
T = TypeVar("T")
FullOption = Annotated[
    bool,
    typer.Option("--full", help="Do not shorten texts; also show logs, files, answers and every metric."),
]
WHOLE = 1 << 30  # characters: more than any text has
SHORT = 2_000


LISTED = {
    "rollout": "select rollout_id, state from rollouts where run_id = {run_id} order by 1 desc",
    "group": "select group_id, state from groups where run_id = {run_id} order by 1 desc",
    "batch": "select batch_no, state from batches where run_id = {run_id} order by 1 desc",
}
"""The query that lists each kind. A database may hold other runs, too."""


def _ask(home: Home, work: "Callable[[AsyncConnection, int], Awaitable[T]]", kind: str = "rollout") -> T:
    from orchestrator.contracts.errors import NotFoundError

    async def with_connection() -> T:
        async with reading(home.reading(), "show") as reader:
            run_id = reader.run.run_id
            try:
                return await reader.ask(lambda connection: work(connection, run_id))
            except NotFoundError as error:
                if not re.match(rf"{kind} \S+ does not exist", str(error)):  # others name the existing ones
                    raise
                query = LISTED[kind].format(run_id=run_id)
                raise NotFoundError(
                    f'{error}; penstock sql "{query}"{home.option} lists the existing ones'
                ) from error

    return anyio.run(with_connection)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(plain(line))


def _json(found: object) -> None:
    typer.echo(plain_json(msgspec.json.encode(found, enc_hook=str).decode()))


@app.command()
def rollout(
    rollout_id: Annotated[
        int, typer.Argument(parser=ID, metavar="ID", help="Its number, as in `penstock tail` and the queue.")
    ],
    config: ConfigOption = HERE,
    attempt: Annotated[
        int | None,
        typer.Option(parser=ATTEMPT, metavar="NUMBER", help="Which attempt (default: the one that counts)."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(parser=COUNTER, metavar="NUMBER", help="Only this step.")
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens", help="With --step: every token that it added; with --full its whole context."
        ),
    ] = False,
    full: FullOption = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write it as one HTML file that needs no server, network or script.",
            parser=path,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a rollout: reward, attempts, verdicts, steps, conversation: penstock show rollout 301 --step 0 --tokens"""
    if html is not None:
        _save(Home.at(config), rollout_id, attempt, html)
        return
    if step is not None:
        _show_step(Home.at(config), rollout_id, attempt, step, tokens=tokens, full=full, as_json=as_json)
        return
    from orchestrator.queries.rollouts import rollout as rollout_of

    async def work(connection: "AsyncConnection", run_id: int) -> tuple[Any, list["StepText"]]:
        found = await rollout_of(connection, run_id, rollout_id, attempt)
        return found, await _step_texts(connection, run_id, rollout_id, found.shown, full=full)

    found, texts = _ask(Home.at(config), work)
    if as_json:
        _json({**msgspec.to_builtins(found), "conversation": texts})
        return
    _print(show_text.rollout_head(found))
    if found.steps:
        tables.print_rows(*show_text.rollout_steps(found), upright=False)
    _print(show_text.conversation(texts))
    if full:
        _print(show_text.rollout_rest(found))


def _save(home: Home, rollout_id: int, attempt: int | None, file: Path) -> None:
    """Write a rollout as one HTML file. Raises ConfigurationError if the file cannot be created, or exists."""
    from orchestrator.web.standalone_page import standalone_page

    name = home.reading().run.name
    page = _ask(
        home,
        lambda connection, run_id: standalone_page(connection, run_id, name, rollout_id, attempt),
    )
    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(page)
    except FileExistsError:
        raise ConfigurationError(f"{file} exists already: name another file, or remove it") from None
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
    typer.echo(f"rollout {rollout_id} is in {plain(str(file))}: {len(page.encode()):,} bytes")


async def _step_texts(
    connection: "AsyncConnection", run_id: int, rollout_id: int, attempt: int, *, full: bool
) -> list["StepText"]:
    """The whole conversation, page by page."""
    from orchestrator.queries.steps import steps

    texts: list[StepText] = []
    first: int | None = 0
    while first is not None:
        page = await steps(
            connection, run_id, rollout_id, attempt, first=first, limit=WHOLE if full else SHORT
        )
        texts += page.steps
        first = page.next
    return texts


def _show_step(
    home: Home,
    rollout_id: int,
    attempt: int | None,
    step: int,
    *,
    tokens: bool,
    full: bool,
    as_json: bool,
) -> None:
    async def work(connection: "AsyncConnection", run_id: int) -> tuple[Any, Any, Any]:
        from orchestrator.contracts.errors import NotFoundError
        from orchestrator.queries import tokens as token_queries
        from orchestrator.queries.rollouts import rollout as rollout_of
        from orchestrator.queries.steps import steps
        from orchestrator.queries.token_text import detokenizer_of

        found = await rollout_of(connection, run_id, rollout_id, attempt)
        page = await steps(
            connection, run_id, rollout_id, found.shown, first=step, n=1, limit=WHOLE if full else SHORT
        )
        if not page.steps or page.steps[0].idx != step:
            left = "its run was pruned" if found.pruned else f"it has {len(found.steps)}"
            raise NotFoundError(f"rollout {rollout_id}, attempt {found.shown} has no step {step}: {left}")
        texts = page.steps[0]
        if not tokens:
            return texts, None, None
        key = (connection, run_id, rollout_id, found.shown, step)
        token_map = await token_queries.token_map(*key)
        start = 0 if full else next((s.start for s in token_map.segments if s.step == step), 0)
        detokenizer = await detokenizer_of(connection, run_id)
        pages = [await token_queries.tokens(*key, detokenizer, start=start)]
        while (end := pages[-1].start + len(pages[-1].ids)) < pages[-1].total and pages[-1].ids:
            pages.append(await token_queries.tokens(*key, detokenizer, start=end))
        return texts, token_map, pages

    texts, token_map, pages = _ask(home, work)
    if as_json:
        _json({"step": texts, "tokens": token_map, "pages": pages} if tokens else texts)
        return
    _print(show_text.conversation([texts]))
    if token_map is not None:
        weight = "not rewarded yet" if token_map.weight is None else f"train weight {token_map.weight:g}"
        _print(
            [
                f"{token_map.full_len} tokens, the last {token_map.full_len - token_map.state_len} sampled; {weight}"
            ]
        )
        rows = [row for page in pages for row in show_text.token_rows(token_map, page)[1]]
        tables.print_rows(show_text.token_rows(token_map, pages[0])[0], rows, upright=False)


@app.command()
def group(
    group_id: Annotated[
        int, typer.Argument(parser=ID, metavar="ID", help="Its number, as in `penstock tail` and the queue.")
    ],
    config: ConfigOption = HERE,
    full: FullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a group: its rollouts side by side, with rewards and advantages: penstock show group 201"""
    from orchestrator.queries.groups import group as group_of

    found = _ask(
        Home.at(config),
        lambda connection, run_id: group_of(connection, run_id, group_id),
        "group",
    )
    if as_json:
        _json(found)
        return
    _print(show_text.group_head(found))
    tables.print_rows(*show_text.group_members(found), upright=False)
    if full:
        _print(show_text.group_answers(found))


@app.command()
def batch(
    batch_no: Annotated[int, typer.Argument(parser=COUNTER, metavar="NUMBER", help="0 and up, per run.")],
    config: ConfigOption = HERE,
    full: FullOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a batch: its groups and its train steps: penstock show batch 3"""
    from orchestrator.queries.batches import batch as batch_of

    found = _ask(
        Home.at(config),
        lambda connection, run_id: batch_of(connection, run_id, batch_no),
        "batch",
    )
    if as_json:
        _json(found)
        return
    _print(show_text.batch_head(found))
    tables.print_rows(*show_text.batch_groups(found), upright=False)
    if found.train_steps:
        tables.print_rows(
            *(show_text.batch_metrics(found) if full else show_text.batch_steps(found)), upright=False
        )
