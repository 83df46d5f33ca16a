"""`penstock tasks vet` as a command: reports, a second call, a changed byte, and the level that a run requires at publish and intake."""

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncEngine
from typer.testing import CliRunner, Result

from ops.lab.task_set.small import WELL_MADE, WORD
from orchestrator.bus import subjects
from orchestrator.cli.main import app
from orchestrator.contracts.events import SubmissionAnswered, TaskSubmitted
from orchestrator.contracts.vetting import VETTING, Level, Vetting
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.home import Home, write_template
from orchestrator.pool.tables import vettings
from orchestrator.pool.vettings import find_vetting, keep_vetting
from orchestrator.probing import NOT_HIDDEN, ProbeRun
from orchestrator.publish import PublishOptions
from orchestrator.queries.vettings import levels, report_of
from orchestrator.roles.intake import Intake
from orchestrator.settings.config import Config, load
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.harbor import load as load_task
from orchestrator.tasks.vetting.findings import Control, TaskFault
from orchestrator.tasks.vetting.leaks import Readable
from orchestrator.tasks.vetting.report import TaskReport
from orchestrator.vetting import readable
from orchestrator.vetting.leak import leak_findings
from orchestrator.vetting.many import Candidate, vet_all
from orchestrator.vetting.records import FILE, FileRecords
from orchestrator.vetting.task import Options, vet
from orchestrator.vetting.trials import Trials
from sandboxes.base import ImageRefused, MissingBase, PathRefused, RefusedReason, SandboxError, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from tests import builders
from tests.integration.roles.rig import Stage, playing, staged
from tests.integration.tasks.vetting_faults import PLANTED

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("probes"), pytest.mark.timeout(200)]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A good task and a bad one."""
    for name, files in (("good", WELL_MADE["write"]), ("bad", PLANTED["a test that always passes"].files)):
        Task.from_files(files).write(tmp_path / "suite" / name)
    return tmp_path / "suite"


async def penstock(*arguments: str) -> Result:
    return await anyio.to_thread.run_sync(partial(CliRunner().invoke, app, list(arguments)))


async def test_the_command_reports_and_a_second_call_continues(suite: Path, tmp_path: Path) -> None:
    words = ("tasks", "vet", str(suite), "--until", "controls-hold", "--times", "1")
    done = await penstock(*words, "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 1 and "1 of 2 tasks reach controls-hold" in done.stdout, done.output
    assert "nothing nothing-pays: the untouched environment earns 1" in done.stdout
    assert "remedy: make the tests fail on the untouched environment" in done.stdout
    assert "nothing-pays" in (tmp_path / "page.html").read_text()
    kept = (suite / FILE).read_text()
    shown = await penstock(*words)
    assert "2 kept reports, the oldest of 2" in shown.stdout and "--again" in shown.stdout
    again = await penstock(*words, "--json")
    found = {each["place"].rpartition("/")[2]: each["level"] for each in json.loads(again.stdout)}
    assert found == {"good": "controls-hold", "bad": "builds"} and again.exit_code == 1
    assert (suite / FILE).read_text() == kept, "nothing was vetted again"
    (suite / "good/instruction.md").write_text("Write the word hi into the file out.txt!")
    await penstock("tasks", "vet", str(suite / "good"), "--until", "builds", "--times", "1")
    assert len((suite / FILE).read_text().splitlines()) == len(kept.splitlines()) + 1, "a changed byte"
    assert load_task(suite / "good").content_hash in FileRecords(suite / FILE).vettings()


class Failing(BubblewrapProvider):
    """Its first sandbox fails by fault of the platform; or it refuses every environment."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def open(self, spec: SandboxSpec):  # type: ignore[no-untyped-def]
        if self.error is not None:
            error = self.error
            if isinstance(error, SandboxError):
                self.error = None
            raise error
        return super().open(spec)


async def test_a_failing_platform_decides_nothing_and_the_next_call_tries_again(tmp_path: Path) -> None:
    records, provider = FileRecords(tmp_path / FILE), Failing(SandboxError("no namespaces"))
    options = Options(section=SandboxSection(), times=1, until=Level.BUILDS)
    candidates = [Candidate(place="a", found=Task.from_files(WELL_MADE["write"]), records=records)]
    (first,) = await vet_all(candidates, provider, options, jobs=1)
    assert first.undecided == "the sandboxes failed: no namespaces" and not (tmp_path / FILE).exists()
    (second,) = await vet_all(candidates, provider, options, jobs=1)
    assert second.level is Level.BUILDS and not second.undecided


async def test_an_environment_that_the_provider_refuses_does_not_build_until_its_cause_is_removed(
    tmp_path: Path,
) -> None:
    options = Options(section=SandboxSection(), times=1, until=Level.BUILDS)
    provider = Failing(ValueError("its image cannot be built"))
    records = FileRecords(tmp_path / FILE)
    candidates = [Candidate(place="a", found=Task.from_files(WELL_MADE["write"]), records=records)]
    (found,) = await vet_all(candidates, provider, options, jobs=1)
    assert found.level is Level.WELL_FORMED and found.faults == (TaskFault.DOES_NOT_BUILD,)
    provider.error = None  # the user followed the remedy: the same bytes open
    (found,) = await vet_all(candidates, provider, options, jobs=1)
    assert found.level is Level.BUILDS and records.vettings()[found.sha256].level is Level.BUILDS


async def test_a_run_with_other_limits_vets_a_task_again(tmp_path: Path) -> None:
    records, provider = FileRecords(tmp_path / FILE), BubblewrapProvider()
    candidates = [Candidate(place="a", found=Task.from_files(WELL_MADE["write"]), records=records)]
    kept = []
    for memory_mb in (512, 512, 1024):
        section = SandboxSection(memory_mb=memory_mb)
        options = Options(section=section, times=1, until=Level.BUILDS)
        (found,) = await vet_all(candidates, provider, options, jobs=1)
        assert found.limits["memory_mb"] == found.limits["tests.memory_mb"] == memory_mb and found.at
        kept.append(found.kept)
    assert kept == [False, True, False]


async def test_files_are_searched_in_rounds_and_a_task_with_more_of_them_is_not_vetted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(readable, "ROUND_BYTES", 1 << 16)
    monkeypatch.setattr(readable, "_ROOM", 0)
    made = "for n in $(seq 40); do head -c 5000 /dev/zero > /app/made-$n; done; ln -f /app/made-1 /app/linked"
    toml = f"[environment.healthcheck]\ncommand = '{made}'\n".encode()
    task = Task.from_files(WELL_MADE["write"] | {"task.toml": toml})
    provider, section = BubblewrapProvider(), SandboxSection()
    shown, _, note = await readable.readable(
        Trials(task, provider, section=section).run, provider, section, task.settings.healthcheck
    )
    assert {f"/app/made-{n}" for n in range(2, 41)} <= set(shown.files) and (shown.unread, note) == ("", "")
    monkeypatch.setattr(readable, "MAX_BYTES", 100_000)
    options = Options(section=section, times=1, until=Level.CONTROLS_HOLD)
    found = await vet("a", task, provider, options)
    (finding,) = (finding for finding in found.findings if finding.counts)
    assert finding.fault is TaskFault.NOT_SEARCHED and "let fewer files be readable" in finding.what_to_do
    assert found.level is Level.BUILDS


SEPARATE = WELL_MADE["write"] | {
    "task.toml": b'[verifier]\nenvironment_mode = "separate"\n',
    "tests/Dockerfile": b"FROM debian:12\nENV OF_TESTS=1\n",
}


class Choosing(BubblewrapProvider):
    """It raises an error for each sandbox that `fails` names, by its specification and number."""

    def __init__(self, error: Exception, fails: Callable[[SandboxSpec, int], bool]) -> None:
        super().__init__()
        self.error, self.fails, self.opened = error, fails, 0

    def open(self, spec: SandboxSpec):  # type: ignore[no-untyped-def]
        self.opened += 1
        if self.fails(spec, self.opened):
            raise self.error
        return super().open(spec)


async def test_the_sandbox_of_the_tests_opens_for_the_build_only_if_it_is_another() -> None:
    provider = Choosing(ValueError(), lambda *_: False)
    options = Options(section=SandboxSection(), times=1, until=Level.BUILDS)
    for files, opened in ((WELL_MADE["write"], 1), (SEPARATE, 3)):
        found = await vet("a", Task.from_files(files), provider, options)
        assert (found.level, provider.opened) == (Level.BUILDS, opened)


async def test_an_image_of_the_tests_that_is_refused_is_a_fault_of_the_build() -> None:
    refused = ImageRefused("environment/Dockerfile: the base image x:1 is not in /images")
    provider = Choosing(refused, lambda spec, _: "OF_TESTS" in spec.env)
    options = Options(section=SandboxSection(), times=1, until=Level.BUILDS)
    found = await vet("a", Task.from_files(SEPARATE), provider, options)
    (finding,) = found.findings
    assert (finding.fault, finding.control) == (TaskFault.DOES_NOT_BUILD, Control.BUILD)
    assert (
        finding.says
        == "the sandbox of the tests does not open: tests/Dockerfile: the base image x:1 is not in /images"
    )


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (MissingBase("its base is gone"), "does-not-build: its base is gone"),
        (PathRefused("/app/x", RefusedReason.LINK), "does-not-build: /app/x: is a symbolic link"),
        (OSError(28, "No space left on device"), "this machine failed: [Errno 28] No space left"),
        (KeyError("x"), "Penstock failed: KeyError: 'x'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_an_error_over_one_task_ends_only_its_own_report(
    error: Exception, ends: str, tmp_path: Path
) -> None:
    """The base is there when the task opens first, and gone later."""
    provider = Choosing(error, lambda spec, number: "OF_TESTS" in spec.env and number > 4)
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    records = FileRecords(tmp_path / FILE)
    toml = b'[environment]\nenv = {OF_TESTS = "1"}\n'
    tasks = {"broken": WELL_MADE["write"] | {"task.toml": toml}, "good": WELL_MADE["write"]}
    candidates = [
        Candidate(place=place, found=Task.from_files(files), records=records)
        for place, files in tasks.items()
    ]
    broken, good = await vet_all(candidates, provider, options, jobs=1)
    assert good.level is Level.CONTROLS_HOLD
    faults = [f"{finding.fault}: {finding.says}" for finding in broken.findings if finding.counts]
    assert [says.startswith(ends) for says in faults or [broken.undecided]] == [True], (
        faults,
        broken.undecided,
    )
    assert broken.level.rank < Level.CONTROLS_HOLD.rank


@pytest.fixture
async def home(
    tmp_path: Path, database_url: str, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The directory of a run that requires `builds`."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    write_template(tmp_path / "first", "vetted", "")
    with (tmp_path / "first/penstock.toml").open("a") as file:
        file.write('\n[tasks]\nrequire = "builds"\n')
    await builders.make_run(engine, load(Home.at(tmp_path / "first").file))
    return tmp_path / "first"


async def test_with_a_run_the_reports_are_rows_and_publish_and_eval_name_a_task_below_the_level(
    suite: Path, home: Path, engine: AsyncEngine
) -> None:
    task = str(suite / "good")
    refused = await penstock("tasks", "publish", task, "-c", str(home))
    held_out = await penstock("eval", "--suite", task, "-c", str(home))
    name = load_task(suite / "good").name
    for each in (refused, held_out):
        assert str(each.exception).startswith(
            f"task '{name}' has not been vetted as it is now, and this run requires builds (tasks.require): run `penstock tasks vet"
        ), each.exception
    done = await penstock("tasks", "vet", task, "-c", str(home), "--until", "builds", "--times", "1")
    assert done.exit_code == 0 and not (suite / FILE).exists(), done.output
    sha256 = load_task(suite / "good").content_hash
    async with engine.connect() as connection:
        run_id = (await connection.scalars(select(vettings.c.run_id))).one()
        stored = await report_of(connection, run_id, sha256)
        assert (await levels(connection, run_id, [sha256]))[sha256].level is Level.BUILDS
    assert stored is not None and TaskReport.from_json(stored).level is Level.BUILDS
    for command in (("tasks", "publish", task), ("eval", "--suite", task)):
        again = await penstock(*command, "-c", str(home))
        assert "nats" in str(again.exception).lower(), "the level is enough: the bus is next"


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url, tasks={"require": "vetted"}) as stage:
        yield stage


async def test_intake_takes_a_task_whose_message_brings_the_level_and_no_other(stage: Stage) -> None:
    task = Task.from_files(WELL_MADE["write"])
    vetting = Vetting(sha256=task.content_hash, level=Level.VETTED, times=3, provider="bubblewrap")
    _, event = PublishOptions().event(task, vetting)
    other = msgspec.structs.replace(vetting, sha256="ab" * 32)
    lower = msgspec.structs.replace(vetting, level=Level.BUILDS)
    sent: dict[str, TaskSubmitted] = {
        name: msgspec.structs.replace(event, submission=name, vetting=found)
        for name, found in (
            ("none", None),
            ("other", other),
            ("lower", lower),
            ("own", vetting),
            ("again-lower", lower),
            ("later", None),
        )
    }
    answers: dict[str, SubmissionAnswered] = {}
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        playing([Intake(stage.context, ["shell"]).run]),
    ):
        for name, each in sent.items():
            await stage.send(subjects.tasks(stage.run.name, "general"), each)
            with anyio.fail_after(60):
                answer = msgspec.json.decode((await anext(notices)).body, type=SubmissionAnswered)
            answers[name] = answer
    assert {name: answer.status for name, answer in answers.items()} == {
        "none": "rejected",
        "other": "rejected",
        "lower": "rejected",
        "own": "accepted",
        "again-lower": "accepted",
        "later": "accepted",  # the level is a row of the run now, and stays
    }
    assert "has not been vetted as it is now, and this run requires vetted" in (answers["other"].reason or "")
    assert "has only the level builds" in (answers["lower"].reason or "")
    assert await stage.count("vettings", level="vetted") == 1


async def test_a_message_replaces_a_lower_level_and_what_older_controls_found_but_no_report_of_these(
    engine: AsyncEngine,
) -> None:
    run = await builders.make_run(engine, Config.model_validate({"run": {"name": "vetted"}}))
    new = Vetting(sha256="ab" * 32, level=Level.BUILDS, times=3, provider="bubblewrap")
    high = msgspec.structs.replace(new, level=Level.VETTED)
    old = msgspec.structs.replace(high, version=VETTING - 1)
    report = {"made": "here"}
    for first, came, kept in (
        ((new, None), high, high),
        ((high, None), new, high),
        ((new, report), high, new),
        ((old, None), new, new),
        ((old, report), new, new),
    ):
        async with engine.begin() as connection:
            await keep_vetting(connection, run.run_id, *first)
            await keep_vetting(connection, run.run_id, came)
            assert await find_vetting(connection, run.run_id, new.sha256) == kept
            await connection.execute(delete(vettings))


async def test_a_file_of_an_image_is_hidden_while_the_solution_runs_and_restored() -> None:
    run = ProbeRun(
        Task.from_files(WELL_MADE["find"]), BubblewrapProvider(), section=SandboxSection(), agent_s=10.0
    )
    for hide, reward in (
        ((), 1.0),
        (["/app/conf/a.ini"], 1.0),
        (["/app/conf/b.ini", "/app/conf/c.ini"], 0.0),
    ):
        left = await run.solved(hide=hide)
        assert left is not None and (await run.judged(left)).reward == reward
        assert [file.path for file in left.artifacts] == ["key.txt"], "it is restored"
    left = await run.solved(hide=["/usr/bin/env"])
    assert left is not None and left.exit_code == NOT_HIDDEN and left.artifacts == []


@pytest.mark.parametrize(
    ("kind", "solution", "faults"),
    [
        ("directory", f"echo {WORD}", (TaskFault.LEAK_IN_NAME,)),
        ("link", f"echo {WORD}", (TaskFault.LEAK_IN_NAME,)),
        ("target", f"echo {WORD}", (TaskFault.LEAK_IN_NAME,)),
        ("directory", "ls given | grep word", ()),
        ("link", "ls given | grep word", ()),
        ("target", "readlink given/latest", ()),
    ],
)
async def test_an_answer_in_the_name_of_a_directory_or_a_link_is_a_leak_unless_the_solution_reads_it(
    kind: str, solution: str, faults: tuple[TaskFault, ...], tmp_path: Path
) -> None:
    same = '[ "$(head -c 100 out)" = ' + WORD + " ]"
    files = WELL_MADE["write"] | {
        "instruction.md": b"Write the pass word of the machine room into out.",
        "solution/solve.sh": f"{solution} > out".encode(),
        "tests/test.sh": f"mkdir -p /logs/verifier; {same}; echo $((1 - $?)) > /logs/verifier/reward.txt".encode(),
        "environment/files/a.txt": b"some text",
    }
    Task.from_files(files).write(tmp_path / "task")
    given = tmp_path / "task/environment/files/given"
    given.mkdir()
    if kind == "directory":
        (given / WORD).mkdir()
    else:
        (given / ("latest" if kind == "target" else WORD)).symlink_to(
            WORD if kind == "target" else "../a.txt"
        )
    options = Options(section=SandboxSection(), times=1, until=Level.CONTROLS_HOLD)
    found = await vet("a", load_task(tmp_path / "task"), BubblewrapProvider(), options)
    assert found.faults == faults, found.findings


async def test_a_text_that_cannot_be_hidden_is_a_leak_if_it_is_encoded() -> None:
    """Files that an image brings: here the search alone sees them, and the machine's own files stand for them."""
    trials = Trials(Task.from_files(WELL_MADE["decode"]), BubblewrapProvider(), section=SandboxSection())
    left, answer = await trials.solved(), f"the pass phrase is {WORD}".encode()
    message = {path: file.data for path, file in trials.run.pristine.files.items()}
    shown = Readable(
        files={**message, "/usr/bin/env": answer, "/etc/hostname": answer.hex().encode()}, variables={}
    )
    found, unread = await leak_findings(trials, left, shown)
    assert [(f.fault, f.where) for f in found] == [(TaskFault.LEAK_ENCODED, "/etc/hostname")] and unread == ""
