"""The guide "Start", followed block by block in a directory of its own, with fewer tasks and train steps; on the way the guides on tasks and
on backups."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.observer import observing
from tests.e2e.stack_rig import START_S, Stack, until
from tests.guides import REPOSITORY, Block, blocks
from tests.violations import command_found_nothing

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]

START, OPERATE = "ops/guides/start.md", "ops/guides/operate.md"
TASKS = ("ops/guides/task-directory.md", "ops/guides/publish-tasks.md")
LESS = {
    "--out models/start": "--out models/start --steps 30 --rows 8",
    "--train 400 --heldout 100": "--train 6 --heldout 1",
    "penstock up -c runs/first": "penstock up -c runs/first --set queue.batch_groups=2 --set queue.group_size=2 --set stage.end_batches=1",
    " 101 -c": " 1 -c",  # the first that is not held out
}
"""Values that are smaller in a quick test than in the guide."""
LARGE = """cp -r tasks/hello tasks/large
mkdir -p tasks/large/environment/files
head -c 2000000 /dev/urandom > tasks/large/environment/files/data.bin"""


class Reader:
    """A reader who follows a guide, in one directory and one shell whose exports stay."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.directory = stack.directory
        self.run = Stack(stack.directory / "runs/first")
        (self.directory / "ops").symlink_to(REPOSITORY / "ops")

    def _environment(self) -> dict[str, str]:
        own = self._stack.environment()
        return {**own, "PATH": f"{Path(sys.executable).parent}:{own['PATH']}", "COLUMNS": "200"}

    def write(self, block: Block) -> None:
        """Write a block that names its file."""
        (self.directory / block.info.removeprefix("file=")).write_text(block.text)

    def bash(self, text: str) -> str:
        """Run a block, which must succeed; returns its output."""
        done = self.ran(text)
        assert done.returncode == 0, (text, done.stdout, done.stderr)
        return done.stdout

    def ran(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a block."""
        for whole, less in LESS.items():
            text = text.replace(whole, less)
        kept = "[ ! -e exports ] || . ./exports\n{}\nexport -p > exports"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", kept.format(text)],
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )

    def python(self, text: str) -> str:
        (self.directory / "block.py").write_text(text)
        return self.bash("python block.py")

    def started(self, command: str) -> None:
        """Start a command that stays in the foreground, in a terminal of its own."""
        for whole, less in LESS.items():
            command = command.replace(whole, less)
        self.run.log_start = self.run.log.stat().st_size if self.run.log.exists() else 0
        with self.run.log.open("ab") as log:
            self.run.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.directory,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stopped(self) -> None:
        """Its terminal is free again."""
        assert self.run.process is not None and self.run.process.wait(60) == 0, self.run.last_output()

    async def up(self, command: str) -> None:
        """Start it, and wait until it reports that it is up."""
        self.started(command)

        def is_up() -> bool:
            assert self.run.process is not None and self.run.process.poll() is None, self.run.last_output()
            return self.run.says_that_it_is_up()

        await until(is_up, "penstock up is up", START_S)


async def test_the_commands_of_the_guide_lead_from_nothing_to_a_policy_that_was_trained(stack: Stack) -> None:
    reader = Reader(stack)
    printed: list[str] = []
    try:
        followed = iter(blocks(START))
        for block in followed:
            match block.language, block.info:
                case "sh", "machine" | "setup":
                    continue  # already done for the tests: ./ops/test starts with it
                case "sh", "background":
                    await reader.up(block.text)
                    break
                case "sh", "":
                    printed.append(reader.bash(block.text))
                case "toml", _:
                    reader.write(block)
        async with observing(reader.run.home) as seen:
            for block in followed:
                if block.info == "after=batch":
                    printed += await published_by_hand(reader)
                    # Their reward is luck: so small a policy may know none of the others.
                    await seen.publish(6)
                    await seen.until_batches(1)
                elif block.info == "after=version":
                    await seen.until_published(0)
                elif block.info == "after=end":
                    await seen.until_ended()
                if block.text.startswith("penstock audit"):
                    assert (
                        await seen.value("select max(version) from policy_versions where run_id = :run") == 1
                    )
                    audited = reader.ran(block.text)
                    command_found_nothing(audited)
                    printed.append(audited.stdout)
                    continue
                printed.append(
                    reader.bash(block.text) if block.language == "sh" else reader.python(block.text)
                )
        output = "\n".join(printed)
        for expected in (
            "6 training and 1 held-out tasks are in suite",
            "7 tasks are well-formed",
            "6 accepted, 0 rejected, 0 unanswered",
            "1 task is well-formed",
            '"status":"accepted"',
            "version-000001 798272",
            "0 violations",
            "stopped",
        ):
            assert expected in output, (expected, output)
        await restored(reader)
        assert (reader.run.left_running(), stack.sandboxes_left()) == ([], [])
    finally:
        reader.run.destroy()


async def published_by_hand(reader: Reader) -> list[str]:
    """The blocks of the guides on tasks: a directory is made, published, published by a client of NATS, and looked at."""
    printed = []
    for block in (block for page in TASKS for block in blocks(page)):
        if block.language == "sh" and block.info not in ("by-hand", "downloaded"):
            printed.append(reader.bash(block.text))
        elif block.language == "python":
            if "tasks/large" in block.text:
                reader.bash(LARGE)
            printed.append(reader.python(block.text))
    assert any("1 accepted" in output for output in printed)
    return printed


async def restored(reader: Reader) -> None:
    """The guide on operating: a run that was copied, lost and unpacked again continues, and the audit finds nothing."""
    [backup, restore] = (block for block in blocks(OPERATE) if block.info in ("backup", "restore"))
    reader.stopped()
    reader.bash(backup.text)
    stale = reader.run.home.layout.root / "journal/later.seg"
    stale.write_bytes(b"what the copy does not have")
    aside, unpack, up, audit = restore.text.splitlines()
    reader.bash(f"{aside}\n{unpack}")
    assert not stale.exists(), "the directory is the copy, and no mixture"
    await reader.up(up)
    command_found_nothing(reader.ran(audit))
    output = reader.bash(
        "penstock sql -c runs/first --json 'select state, count(*) as n from batches group by 1'"
    )
    assert json.loads(output) == {"state": "committed", "n": 1}
    reader.bash("penstock down -c runs/first")
    reader.stopped()
