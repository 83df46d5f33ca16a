"""All questions of a check, in order."""

from collections.abc import Awaitable, Callable, Collection

from scaffolds.base import ScaffoldKind
from scaffolds.find import find

from orchestrator.contracts.errors import PenstockError
from orchestrator.scaffold_check.bench import open_bench
from orchestrator.scaffold_check.scenarios import QUESTIONS, Finding, ScaffoldCheck, context_for
from orchestrator.scripted.services import open_services

NAMES = ("task", *(name for name, _ in QUESTIONS), "compaction")


async def check(
    name: str,
    tell: Callable[[Finding], object],
    *,
    only: Collection[str] = (),
    silence_s: float,
    timeout_s: float,
    provider: str,
) -> bool:
    """Whether all applicable questions pass; `tell` receives each finding. `only`: names of questions; the first question always runs.

    ValueError for an unknown scaffold or question, or a program that is not installed; PenstockError when the program makes no request to the
    policy.
    """
    if unknown := sorted(set(only) - set(NAMES)):
        raise ValueError(f"unknown question {unknown[0]!r}; known: {', '.join(NAMES)}")
    scaffold = find(name)
    if scaffold.manifest.kind == ScaffoldKind.BLACK:
        scaffold.black().binds()
    passed = True

    async def ask(question: str, asking: Callable[[], Awaitable[list[Finding]]]) -> None:
        nonlocal passed
        if only and question not in (*only, "task"):
            return
        try:
            findings = await asking()
        except PenstockError as error:
            findings = [Finding(question, "FAIL", str(error))]
        for finding in findings:
            passed = passed and finding.verdict != "FAIL"
            tell(finding)

    async with open_services() as services:
        async with open_bench(services, name, scaffold, provider=provider) as bench:
            checks = ScaffoldCheck(bench, silence_s=silence_s, timeout_s=timeout_s)
            await ask("task", checks.task)
            if checks.plain is None or not checks.plain.own:
                how = (
                    f"{checks.plain.reason}: {checks.plain.log[-500:]}" if checks.plain else "it did not end"
                )
                raise PenstockError(f"the program sent no request to the policy ({how})")
            for question, asking in QUESTIONS:
                await ask(question, lambda asking=asking: asking(checks))  # type: ignore[misc]
        context = context_for(checks.plain)
        if not only or "compaction" in only:
            async with open_bench(services, name, scaffold, max_context=context, provider=provider) as small:
                await ask("compaction", lambda: checks.compaction(small))

    async def drift() -> list[Finding]:
        return [checks.drift()]

    await ask("task", drift)
    return passed
