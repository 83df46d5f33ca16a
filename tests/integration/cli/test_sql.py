"""`penstock sql` and `penstock tasks publish` against real services."""

import csv
import json
import re
import secrets
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import asyncpg
import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from orchestrator.bus.nats import NatsBus
from orchestrator.cli.main import app
from orchestrator.cli.sql import MAX_ROWS, MAX_SECONDS, Answer, query
from orchestrator.contracts.errors import PenstockError
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import write_template
from orchestrator.pool import reader_login as reader_login_module
from orchestrator.pool.engine import open_engine
from orchestrator.pool.reader_login import LOGIN, ReaderLogin, reader_login
from orchestrator.publish import offered_scaffold
from orchestrator.roles.context import OrchestratorContext
from orchestrator.roles.intake import Intake
from orchestrator.settings.config import Config, load
from orchestrator.settings.timeouts import Timeouts, use
from orchestrator.tasks.suite import generate
from tests import builders

pytestmark = [pytest.mark.services, pytest.mark.tier("look")]


def ask(url: str, statement: str, **limits: float) -> Answer:
    return anyio.run(lambda: query(url, statement, **limits))  # type: ignore[arg-type]


def test_sql_runs_a_statement_as_it_is_written(database_url: str) -> None:
    statement = r"""SELECT '7'::int AS n, ':name' AS colon, '100%' AS percent, E'\\:x' AS slash, array[1,2] AS list,
                    '{"a": 1}'::jsonb -> 'a' AS j, to_char(make_time(9, 5, 0), 'HH24:MI') AS at"""
    answer = ask(database_url, statement)
    assert answer.columns == ["n", "colon", "percent", "slash", "list", "j", "at"]
    assert answer.rows == [(7, ":name", "100%", "\\:x", [1, 2], 1, "09:05")] and not answer.more


@pytest.mark.parametrize(
    "statement",
    [
        "WITH a AS (SELECT 1 AS x) TABLE a",
        "VALUES (1)",
        "EXPLAIN SELECT 1",
        "SHOW work_mem",
        "(SELECT 1)",
        "-- c\n/* d */ select 1;",
    ],
)
def test_whatever_reads_is_let_through(database_url: str, statement: str) -> None:
    assert len(ask(database_url, statement).rows) == 1


def test_rows_and_time_have_a_limit(database_url: str) -> None:
    many = ask(database_url, "SELECT n FROM generate_series(1, 50) n", limit=7)
    assert (len(many.rows), many.more) == (7, True)
    assert len(ask(database_url, "SELECT n FROM generate_series(1, 5000) n", limit=0).rows) == 5000
    with pytest.raises(PenstockError, match=r"took longer than 0\.1 s: .*--timeout-s"):
        ask(database_url, "SELECT pg_sleep(60)", timeout_s=0.1)
    with pytest.raises(PenstockError, match="took longer than"):  # and 0 would mean no limit
        ask(database_url, "SELECT pg_sleep(60)", timeout_s=0.0001)
    assert len(ask(database_url, "SELECT 1", limit=MAX_ROWS, timeout_s=MAX_SECONDS).rows) == 1
    with pytest.raises(PenstockError, match=r"the statement is not UTF-8 text \(character 9\)"):
        ask(database_url, "SELECT '\udcff'")


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("SELECT 1 FRO groups g", r'syntax error at or near "groups" \(line 1, column 14\)'),
        ("SELECT *\n  FROM nowhere", r'relation "nowhere" does not exist \(line 2, column 8\)$'),
        ("SELECT * FROM rolouts", r'relation "rolouts" does not exist .*; did you mean rollouts\?$'),
        ("SELECT stat FROM groups", 'column "stat" does not exist .*; Perhaps you meant'),
        ("SELEC 1", r"SELEC begins no statement: did you mean select\?$"),
        ("DELETE FROM groups", "penstock sql only reads: .* not with DELETE$"),
        ("COPY groups TO PROGRAM 'cat'", "penstock sql only reads"),
        ("SET ROLE penstock", "penstock sql only reads"),
        (" -- nothing", "the statement is empty"),
        (
            "WITH gone AS (DELETE FROM groups RETURNING 1) SELECT * FROM gone",
            "permission denied|read-only transaction",
        ),
        ("EXPLAIN ANALYZE DELETE FROM groups", "permission denied|read-only transaction"),
        ("SELECT open_partition(9)", "permission denied|read-only transaction"),
        ("SELECT 1; SELECT 2", "there are several statements: penstock sql takes one at a time$"),
        ("SELECT $1::int", "."),
        ("SELECT 1/0", "division by zero"),
    ],
)
def test_an_error_of_postgres_is_one_sentence(database_url: str, statement: str, sentence: str) -> None:
    with pytest.raises(PenstockError, match=sentence) as caught:
        ask(database_url, statement)
    assert "\n" not in str(caught.value) and "asyncpg" not in str(caught.value)


FILE = "SELECT word FROM ts_stat($$select to_tsvector(pg_read_file('PG_VERSION'))$$)"


@pytest.mark.parametrize(
    "setting",
    ["('role', 'none', true)", "('role', '{owner}', true)", "('session_authorization', '{owner}', true)"],
)
def test_no_statement_leaves_the_reader(database_url: str, setting: str) -> None:
    left = "set_config" + setting.format(owner=urlsplit(database_url).username)
    with pytest.raises(PenstockError, match="permission denied"):
        # Postgres checks the rights of functions that run a text only when they run it.
        ask(
            database_url,
            f"WITH a AS MATERIALIZED (SELECT {left} AS x) SELECT ({FILE} WHERE a.x IS NOT NULL LIMIT 1) FROM a",
        )


@pytest.mark.parametrize(
    ("options", "leaves"),
    [
        ("IN ROLE penstock_reader", None),
        (
            "IN ROLE penstock_reader, penstock_trainer",
            "may do more than read: .* stops a mistake .* only a reader",
        ),
    ],
)
def test_risks_of_a_statement_besides_reading_are_reported_where_no_reader_can_log_in(
    home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, options: str, leaves: str | None
) -> None:
    name = f"login_{secrets.token_hex(6)}"
    parts = urlsplit(database_url)
    monkeypatch.setenv(
        "DATABASE_URL", parts._replace(netloc=f"{name}:pw@{parts.netloc.rpartition('@')[2]}").geturl()
    )
    owned(database_url, f"CREATE ROLE {name} LOGIN PASSWORD 'pw' {options}")
    try:
        login = invoke("sql", "-c", str(home), "--json", "SELECT session_user AS login, current_user AS role")
    finally:
        owned(database_url, f"DROP ROLE {name}")
    assert login.exit_code == 0 and json.loads(login.stdout) == {"login": name, "role": "penstock_reader"}
    assert re.fullmatch(f"login {name} {leaves}.*\n", login.stderr) if leaves else not login.stderr


def test_a_superuser_asks_as_a_login_that_is_a_reader_alone(home: Path) -> None:
    answer = invoke("sql", "-c", str(home), "--json", "SELECT session_user AS login")
    assert (json.loads(answer.stdout), answer.stderr) == ({"login": LOGIN}, "")


def test_errors_of_a_statement_are_not_in_the_servers_log(home: Path) -> None:
    answer = invoke("sql", "-c", str(home), "--json", "SHOW log_min_messages")
    assert json.loads(answer.stdout) == {"log_min_messages": "fatal"}


@pytest.mark.anyio
async def test_a_login_that_does_not_exist_is_not_tried(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, name = [], f"login_{secrets.token_hex(6)}"
    connect = reader_login_module._connect

    async def noted(url: str) -> asyncpg.Connection:
        tried.append(urlsplit(url).username)
        return await connect(url)

    monkeypatch.setattr(reader_login_module, "_connect", noted)
    own = urlsplit(database_url)
    url = own._replace(netloc=f"{name}:pw@{own.netloc.rpartition('@')[2]}").geturl()
    async with open_engine(database_url) as engine:
        async with engine.begin() as connection:
            await connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'pw' IN ROLE penstock_reader"))
        assert await reader_login(url) == ReaderLogin(url) and tried == [name]
        async with engine.begin() as connection:
            await connection.execute(text(f"DROP ROLE {name}"))


@pytest.mark.anyio
async def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        use(Timeouts(pool_connect_s=0.1)),
        anyio.fail_after(60),
    ):
        with pytest.raises(TimeoutError):
            await reader_login(f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/c?sslmode=disable")


def owned(url: str, statement: str) -> None:
    async def work() -> None:
        async with open_engine(url) as engine, engine.begin() as connection:
            await connection.execute(text(statement))

    anyio.run(work)


@pytest.mark.parametrize("call", ["pg_read_file('PG_VERSION')", "lo_import('/etc/hostname')", "lo_create(0)"])
def test_functions_that_reach_out_or_write_are_refused(database_url: str, call: str) -> None:
    with pytest.raises(PenstockError, match=r"permission denied|read-only transaction"):
        ask(database_url, f"SELECT {call}")


@pytest.mark.parametrize(
    "value", ["'4713-01-01 BC'::timestamp", "'20000-01-01'::timestamptz", "'4000-01-01 BC'::date"]
)
def test_a_time_that_python_cannot_hold_is_refused_with_the_remedy(database_url: str, value: str) -> None:
    with pytest.raises(PenstockError, match=r"out of Python's range .*select it as text"):
        ask(database_url, f"SELECT {value}")


@pytest.fixture
def home(
    tmp_path: Path, database_url: str, nats_server: EmbeddedNats, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A directory with a configuration whose run no other test uses."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", nats_server.url)
    write_template(tmp_path, f"r{secrets.token_hex(4)}", "")
    yield tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_sql_prints_a_table_or_json(home: Path) -> None:
    table = invoke("sql", "-c", str(home), "SELECT 1 AS one, 0.125::float8 AS eighth, NULL AS nothing")
    assert table.exit_code == 0 and all(word in table.stdout for word in ("one", "eighth", "0.125"))
    statement = "SELECT 1 AS one, '\\xab'::bytea AS raw, '[1]'::jsonb AS j, 1.5::numeric AS n, 'NaN'::float8 AS nan, 'a,b' AS text"
    as_json = invoke("sql", "-c", str(home), "--json", statement)
    assert json.loads(as_json.stdout) == {
        "one": 1,
        "raw": "ab",
        "j": [1],
        "n": 1.5,
        "nan": "NaN",
        "text": "a,b",
    }
    as_csv = invoke("sql", "-c", str(home), "--csv", statement)
    assert as_csv.stdout == 'one,raw,j,n,nan,text\n1,ab,[1],1.5,nan,"a,b"\n'
    formula = """SELECT '=1+1' AS "@head", -1.5::numeric AS n, '-2'::text AS text, '-' AS dash"""
    guarded = invoke("sql", "-c", str(home), "--csv", formula)
    assert guarded.stdout == "'@head,n,text,dash\n'=1+1,-1.5,-2,'-\n"
    exact = invoke("sql", "-c", str(home), "--csv", "--exact", formula)
    assert exact.stdout == "@head,n,text,dash\n=1+1,-1.5,-2,-\n"
    assert "--exact goes with --csv" in str(invoke("sql", "-c", str(home), "--exact", formula).exception)
    piped = CliRunner().invoke(
        app, ["sql", "-c", str(home), "--limit", "1", "-"], input="SELECT generate_series(1, 2) AS n"
    )
    assert piped.stdout == "n\n1\n" and "these are the first 1 rows" in piped.stderr
    assert "not both" in str(invoke("sql", "-c", str(home), "--csv", "--json", "SELECT 1").exception)


def test_text_of_a_policy_is_shown_literally_and_moves_no_cursor(home: Path) -> None:
    hostile = "[/x] [bold]y[/bold] a:train:b \x1b[31mred\x07"
    statement = "SELECT E'" + hostile.encode("unicode_escape").decode() + "' AS value"
    shown = invoke("sql", "-c", str(home), statement)
    assert shown.exit_code == 0, shown.exception
    assert "[/x] [bold]y[/bold] a:train:b \\x1b[31mred\\x07" in shown.stdout
    assert json.loads(invoke("sql", "-c", str(home), "--json", statement).stdout) == {"value": hostile}


def test_a_scaffold_that_the_run_does_not_have_is_refused_before_anything_is_sent(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")  # where nothing listens
    publish = partial(invoke, "tasks", "publish", "nowhere", "-c", str(home), "--scaffold")
    typo = str(publish("shel").exception)
    assert typo.startswith("scaffold 'shel' is unknown; the run knows: ")
    assert typo.partition("knows: ")[2].split(", ").count("shell") == 1
    (home / "my-black").mkdir()
    missing = publish(str(home / "my-black")).exception
    assert f'add "{home / "my-black"}" = 0.0 to rollout.scaffolds of {home / "penstock.toml"}' in str(missing)


def test_a_scaffold_next_to_the_configuration_is_found_from_any_directory(tmp_path: Path) -> None:
    scaffold, file = str(tmp_path / "my-black"), tmp_path / "penstock.toml"
    assert offered_scaffold("./my-black", {scaffold: 0.0}, file) == scaffold
    assert offered_scaffold("my-black/", {scaffold: 0.0}, file) == scaffold
    assert offered_scaffold(scaffold, {scaffold: 0.0}, file) == scaffold


@pytest.mark.parametrize("defines", ["scaffold.toml", "mine.py"])
def test_a_directory_and_the_file_that_defines_its_scaffold_are_the_same(
    tmp_path: Path, defines: str
) -> None:
    directory, file = tmp_path / "mine", tmp_path / "penstock.toml"
    directory.mkdir()
    (directory / defines).touch()
    whole, part = str(directory), str(directory / defines)
    for known in (whole, part):
        for given in (whole, part, "mine/", f"mine/{defines}"):
            assert offered_scaffold(given, {known: 0.0}, file) == known


def test_a_directory_with_two_python_files_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("one.py", "two.py"):
        (tmp_path / "mine" / name).touch()
    with pytest.raises(ValueError, match="mine: the run does not have it"):
        offered_scaffold(
            str(tmp_path / "mine"), {str(tmp_path / "mine/one.py"): 0.0}, tmp_path / "penstock.toml"
        )


@pytest.mark.anyio
async def test_published_tasks_are_accepted_once_and_rejections_are_reported(
    home: Path, database_url: str, nats_server: EmbeddedNats
) -> None:
    config: Config = load(home / "penstock.toml")
    for n, item in enumerate(generate("train", 3, 0)):
        item.task.write(home / "suite" / str(n))
    async with (
        open_engine(database_url) as engine,
        NatsBus.connect(nats_server.url) as bus,
        anyio.create_task_group() as group,
    ):
        await bus.ensure_streams()
        run = await builders.make_run(engine, config)
        group.start_soon(
            Intake(
                OrchestratorContext(run_id=run.run_id, run=run.name, config=config, engine=engine, bus=bus),
                ["shell"],
            ).run
        )
        publish = partial(invoke, "tasks", "publish", str(home / "suite"), "-c", str(home), "--json")
        for already in (0, 3):
            done = await anyio.to_thread.run_sync(publish)
            assert (done.exit_code, json.loads(done.stdout)) == (
                0,
                {"accepted": 3, "already": already, "rejected": {}, "unanswered": 0, "notes": []},
            )
        assert (await query(database_url, "SELECT count(*)::int FROM groups")).rows == [(3,)]
        alone = ("--group-size", "1", "--label", "x")
        refused = await anyio.to_thread.run_sync(partial(publish, *alone))
        answer = json.loads(refused.stdout.splitlines()[-1])
        assert refused.exit_code == 1 and len(answer["rejected"]) == 3
        (reason,) = set(answer["rejected"].values())
        assert reason.startswith("group_size is 1: a training group")
        publish = partial(invoke, "tasks", "publish", str(home / "suite"), "-c", str(home))
        same = await anyio.to_thread.run_sync(publish)
        assert (same.stdout, same.stderr) == ("3 accepted already, 0 rejected, 0 unanswered\n", "")
        other = await anyio.to_thread.run_sync(partial(publish, "--scaffold", "oracle"))
        assert "keeps its scaffold and group size: publish it again with another --label" in other.stderr
        again = await anyio.to_thread.run_sync(partial(publish, *alone))
        assert again.stdout == "0 accepted, 3 rejected, 0 unanswered\n"
        assert (
            f"  3 tasks: {reason} (answered earlier, and that stays: use another --label)\n" == again.stderr
        )
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("SELECT avg(x), avg(y) FROM (VALUES (1, 10), (3, 30)) v(x, y)", {"avg": 2, "avg_2": 20}),
        (
            "SELECT * FROM (VALUES (1, 'a')) t(id, x) JOIN (VALUES (7, 1)) u(id, t) ON u.t = t.id",
            {"id": 1, "x": "a", "id_2": 7, "t": 1},
        ),
        ("SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a", {"a": 1, "a_3": 2, "a_2": 3, "a_4": 4}),
        ("SELECT 1, 2", {"?column?": 1, "?column?_2": 2}),
    ],
)
def test_every_column_of_a_row_is_there_whatever_its_name(
    statement: str, row: dict[str, Any], database_url: str, tmp_path: Path
) -> None:
    write_template(tmp_path, "test", "")
    options = ["-c", str(tmp_path), statement]
    environment = {"DATABASE_URL": database_url}
    shown = CliRunner().invoke(app, ["sql", "--json", *options], env=environment)
    assert shown.exit_code == 0 and json.loads(shown.stdout) == row, shown.output
    [head, cells] = csv.reader(
        CliRunner().invoke(app, ["sql", "--csv", *options], env=environment).stdout.splitlines()
    )
    assert (head, cells) == (list(row), list(map(str, row.values())))
    titles, line = CliRunner().invoke(app, ["sql", *options], env=environment).stdout.splitlines()
    assert (titles.split(), line.split()) == (list(row), list(map(str, row.values())))
