"""`penstock tasks check --build`: whether a task's environment opens, and whether its tests work without a network.

Tests of public task sets often fetch what they need (`pip install`, `uvx`, `apt-get`). A sandbox has no network here unless the run grants one, so
they are run once, on the solution's work if there is one, and what they print is searched for the errors of such programs. Tests that hide those
errors are found by `penstock tasks vet`, as a solution that earns nothing.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.quote import quoted
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.worker import sandbox_limits
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import STEPS, TEST_SCRIPT, Task
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.verdict import same
from orchestrator.vetting.trials import NOTHING, Trials
from sandboxes.base import PathRefused, Provider, SandboxError

_OFFLINE: Final = re.compile(
    r"could not resolve|name resolution|temporary failure resolving|name or service not known|network is unreachable|no route to host"
    r"|failed to establish a new connection|getaddrinfo|eai_again|dns error|unable to locate package|no matching distribution found"
    r"|unable to resolve host|could not connect to|error sending request|fetcherror|enotfound|failed to fetch",
    re.IGNORECASE,
)
_FETCHES: Final = re.compile(
    r"\b(apt(-get)? (-\S+ )*(update|install)|apk add|pip3? (-\S+ )*install|uvx|uv (pip install|tool|run|sync|venv|add|init)|pipx|npx"
    r"|npm (install|ci|i)\b|curl|wget|git clone|conda|cargo (build|test|install)|go (get|install|mod)|gem install)"
)
_SECONDS: Final = 60.0
_SHOWN: Final = 160
REMEDY: Final = (
    "put what the tests fetch into the image of environment/Dockerfile, or into one of their own (tests/Dockerfile with "
    '[verifier].environment_mode = "separate"), or next to tests/test.sh; '
    "or let the run grant their hosts (sandbox.egress) and list them in [verifier].allowed_hosts"
)


def network_error(log: str) -> str:
    """The first line of a log that shows a missing network; empty: none does."""
    return next((line.strip()[:_SHOWN] for line in log.splitlines() if _OFFLINE.search(line)), "")


def fetching_line(task: Task) -> str:
    """`tests/test.sh line 3 (uvx pytest …)`: the first line of a test script that fetches something; empty: none does."""
    for step in steps_of(task):
        place = TEST_SCRIPT if step.name is None else f"{STEPS}{step.name}/{TEST_SCRIPT}"
        script = step.task.tests_files()["test.sh"].data.decode(errors="replace")
        for number, line in enumerate(script.splitlines(), start=1):
            if not line.lstrip().startswith("#") and _FETCHES.search(line):
                return f"{place} line {number} ({line.strip()[:_SHOWN]})"
    return ""


async def problem_of(task: Task, provider: Provider, section: SandboxSection) -> str:
    """Why a task does not build, or cannot be graded here; empty: it builds and is graded. SandboxError if the platform fails."""
    try:
        trials = Trials(task, provider, section=section)
        if not task.is_solved:
            limits = sandbox_limits(trials.section, _SECONDS)
            async with open_sandbox(
                provider, trials.run.pristine.spec(trials.run.pristine.files, limits)
            ) as sandbox:
                if (check := task.settings.healthcheck) is not None:
                    await until_healthy(sandbox, check)
        left = await trials.solved() if task.is_solved else NOTHING
        grade = await trials.run.judged(left)
    except (ValueError, InfraFailure, PathRefused) as error:
        return f"it does not build: {error}"
    if same(grade.reward, trials.maximum):
        return ""
    line, fetches = network_error(grade.log), fetching_line(task)
    if line:
        return f"it needs the network to be graded, and its tests have none: {fetches or TEST_SCRIPT} ends with {quoted(line)}; {REMEDY}"
    if fetches and task.is_solved:
        earned = "gets no verdict" if grade.reward is None else f"earns {grade.reward:g}"
        return f"it needs the network to be graded, as it seems: its solution {earned}, and {fetches} fetches something; {REMEDY}"
    return ""


async def problems_of(
    found: Sequence[tuple[str, Task]],
    provider: Provider,
    section: SandboxSection,
    tick: Callable[[int, int], object] = lambda *_: None,
) -> dict[str, str]:
    """Place → sentence, for each task that does not build or needs a network. ValueError if no sandbox can be opened here."""
    problems: dict[str, str] = {}
    for number, (place, task) in enumerate(found, start=1):
        try:
            if says := await problem_of(task, provider, section):
                problems[place] = f"{place}: {says}"
        except SandboxError as error:
            raise ValueError(f"{place}: the sandboxes failed: {error}") from error
        tick(number, len(found))
    return problems
