"""Every view on the database that a demo run left: the demo's own code runs a short scenario, ends, and leaves its dashboard
running, as `./ops/demo --keep` does. A trained batch of it is verified."""

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from playwright.async_api import Browser, expect
from rich.console import Console
from sqlalchemy import text

from ops.lab.demo import policy
from ops.lab.demo.keep import keep
from ops.lab.demo.main import VAR, running_stack
from ops.lab.demo.outcome import Results
from ops.lab.demo.prepare import SCAFFOLDS, write_run
from ops.lab.demo.scenario import DemoRun
from ops.lab.demo.suite import Suite, draw_suite
from orchestrator.deploy.embedded.supervisor import stop_running
from orchestrator.deploy.home import Home
from orchestrator.pool.engine import Role, open_engine
from orchestrator.runtime.plugins import names
from orchestrator.tasks.settings import DOMAINS
from tests.browser.visitor import NARROW, WIDE, visiting
from tests.e2e.stack_rig import REPOSITORY, place
from tests.violations import Violation, sentences

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.services,
    pytest.mark.timeout(600),
    # The remains of a demo outlive the process that left them, here too: the stack is stopped by its own layout.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.tier("demo"),
]

SECONDS, HELDOUT = (
    300.0,
    4,
)  # the loop ends long before, with its second batch; held-out tasks, one of each domain
VIEWS = {
    "/run": ".chart canvas",
    "/run?x=time": ".chart canvas",
    "/queue": ".strip-cell, .empty",
    "/groups": "tbody tr",
    "/groups/{group}": ".answers, .difference",
    "/rollouts": "tbody tr",
    "/rollouts?domain=agent&purpose=eval": "tbody tr",
    "/rollouts/{rollout}": ".turn.policy",
    "/rollouts/{rollout}?view=tokens": ".k.first",
    "/rollouts/{rollout}?view=timings": ".bar.generation",
    "/rollouts/{rollout}?view=verdict": ".checks",
    "/rollouts/{rollout}?view=files": ".panel",
    "/batches": "tbody tr",
    "/batches/0": ".tree-node",
    "/system": "tbody tr",
}
TRAINED = """select r.rollout_id, r.group_id from batch_rollouts b join rollouts r using (rollout_id) order by b.batch_id, b.rollout_id limit 1"""
# By domain: groups with verdicts, and those of them whose rewards differ and which were filtered out although the run went on.
TRIED = """select g.domain, count(*) as groups,
  count(*) filter (where g.state = 'filtered' and g.reason <> 'run_ended' and w.different) as wrong from groups g join (
  select group_id, count(distinct performance) > 1 as different from latest_rewards join rollouts using (rollout_id) group by 1) w using (group_id)
where g.purpose = 'train' group by 1"""
TRAINED_DOMAINS = """select b.batch_no, array_agg(distinct g.domain) from batch_rollouts c join batches b using (batch_id)
join groups g on g.group_id = c.group_id where b.state = 'committed' group by 1"""
UNFIT = re.compile(r"\[object |undefined|NaN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The remains of a demo. `ids` are of a trained rollout."""

    url: str
    directory: Path
    found: Results
    ids: dict[str, int]
    domains: dict[int, set[str]]  # trained, by batch
    # by domain: groups with verdicts, and those that were filtered though they had a signal
    tried: dict[str, tuple[int, int]]

    @property
    def address(self) -> str:
        return self.url.partition("/?")[0]


@asynccontextmanager
async def demonstrated() -> AsyncIterator[Left]:
    """A demo that has ended, and its dashboard."""
    drawn = draw_suite(0)
    suite = Suite(drawn.train[:200], drawn.heldout[:HELDOUT])
    with place() as root:
        start = await anyio.to_thread.run_sync(
            policy.make, REPOSITORY / VAR / "policy", 0, Console(file=sys.stderr)
        )
        scaffolds = {name: share for name, share in SCAFFOLDS.items() if name in names("scaffolds")}
        directory = write_run(
            root / "demo",
            seed=0,
            model=start,
            seconds=SECONDS,
            scaffolds=scaffolds,
            sandbox="bubblewrap",
            control=False,
        )
        file = directory / "penstock.toml"
        file.write_text(re.sub(r"^end_seconds = .*$", "end_batches = 2", file.read_text(), flags=re.M))
        with running_stack(directory) as stack:
            found = await DemoRun(
                Console(file=sys.stderr), directory, stack=stack, suite=suite, seconds=SECONDS, rollouts=1
            ).run()
        try:
            url = await anyio.to_thread.run_sync(keep, directory)
            services = Home.at(directory).reading().services
            async with (
                open_engine(services.database_url, Role.READER, size=1) as engine,
                engine.connect() as connection,
            ):
                rollout, group = (await connection.execute(text(TRAINED))).one()
                domains = {
                    number: set(found) for number, found in await connection.execute(text(TRAINED_DOMAINS))
                }
                tried = {row.domain: (row.groups, row.wrong) for row in await connection.execute(text(TRIED))}
            yield Left(
                url=url,
                directory=directory,
                found=found,
                ids={"rollout": rollout, "group": group},
                domains=domains,
                tried=tried,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await stop_running(Home.at(directory).layout)


async def test_every_view_opens_on_what_a_demo_left_and_its_batches_are_verified_and_its_time_accounted_for(
    browser: Browser, pictures: Path | None
) -> None:
    async with demonstrated() as left, visiting(left, browser) as visitor:
        if left.found.audit.violations or left.found.run.lost:
            raise Violation(
                f"{left.found.run.lost} lost; {sentences(left.found.audit, left.found.audit.checks)}"
            )
        await visitor.enter()
        for path, there in VIEWS.items():
            await visitor.open(path.format(**left.ids))
            await expect(visitor.main.locator(there).first).to_be_attached()
            assert await visitor.main.locator(".message").count() == 0, await visitor.main.inner_text()
            assert len(await visitor.main.inner_text()) > 100, f"{path} is blank"
            for size in (WIDE, NARROW):
                await visitor.resized(size, "light")
                await visitor.picture(pictures, f"demo{re.sub('[^a-z]+', '-', path)}-{size[0]}")
                assert await visitor.overflow() == [], f"{path} is wider than {size[0]} px"
                assert size == WIDE or await visitor.cramped() == [], (
                    f"{path} has texts without room at {size[0]} px"
                )
            assert await visitor.faint() == [], f"{path} has texts that are hard to read"
        await visitor.open("/run")
        figures = await visitor.figures()
        assert figures["policy version"] == str(left.found.after.version)
        assert not UNFIT.findall(await visitor.main.inner_text())
        assert visitor.complaints == []
        # Which groups have a signal is chance. Every domain was tried, and what had a signal was not left out.
        assert left.tried.keys() == set(DOMAINS), left.tried
        assert [wrong for _, wrong in left.tried.values()] == [0] * len(DOMAINS), left.tried
        assert left.domains and all(found and found <= set(DOMAINS) for found in left.domains.values())
        for batch in left.domains:
            await verified(left.directory, batch)
        await accounted(left.directory)
        await stop_running(Home.at(left.directory).layout)
        await accounted(left.directory)


async def verified(directory: Path, batch: int) -> None:
    """Merged training of a stored batch against one row per sample, as a person requests it."""
    command = [sys.executable, "-m", "orchestrator.cli", "trainer", "verify", "--batch", str(batch), "--json"]
    done = await anyio.run_process(
        [*command, "-c", str(directory)], check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    report = json.loads(done.stdout)
    assert report["ok"] and {"gradient"} <= {check["name"] for check in report["checks"]}, report


async def accounted(directory: Path) -> None:
    """The use of time in the run, as a person requests it: next to the run's stack, or of a run that was stopped."""
    command = [sys.executable, "-m", "ops.lab.benchmarks.loop", str(directory), "--json"]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    report = json.loads(done.stdout.splitlines()[-1])
    # How large they are depends on the machine: a run of seconds has its last commit and the attempts that its end cancels, which have no name, and
    # the clocks of two processes differ by every pause. So they are shown, and some of the time has a name.
    print(*report["bars"], sep="\n")
    for bar in report["bars"]:
        named = bar["name"].endswith("time with a name")
        assert 0 < bar["value"] <= 1 if named else 0 <= bar["value"] < 1, bar
    # All of it is accounted for: what is at work and what is not are the whole, but for slots that were held twice.
    for one in report["figures"]["places"]:
        twice = report["figures"]["twice"] if one["name"] == "rollout slots" else 0.0
        whole = sum(one["parts"].values()) + sum(one["rests"].values()) - twice
        assert whole == pytest.approx(one["slots"] * one["seconds"], rel=0.001), one
