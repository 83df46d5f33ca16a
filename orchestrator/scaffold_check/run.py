"""All questions of a check, in order."""

from collections.abc import Awaitable, Callable, Collection

from scaffolds.find import find

from orchestrator.contracts.errors import PenstockError
from orchestrator.scaffold_check.bench import open_bench, open_services
from orchestrator.scaffold_check.scenarios import QUESTIONS, Check, Finding, context_for

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
    """Whether everything that applies passes; `tell` gets the findings as they come. `only`: names of questions; the first is always asked.

    ValueError for an unknown scaffold or question, or a program that is not installed; PenstockError when the program asks the policy for
    nothing at all.
    """
    if unknown := sorted(set(only) - set(NAMES)):
        raise ValueError(f"unknown question {unknown[0]!r}; known: {', '.join(NAMES)}")
    scaffold = find(name)
    if scaffold.manifest.kind == "black":
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
            asked = Check(bench, silence_s=silence_s, timeout_s=timeout_s)
            await ask("task", asked.task)
            if asked.plain is None or not asked.plain.own:
                how = f"{asked.plain.reason}: {asked.plain.log[-500:]}" if asked.plain else "it did not end"
                raise PenstockError(f"the program asked the policy for nothing ({how})")
            for question, asking in QUESTIONS:
                await ask(question, lambda asking=asking: asking(asked))  # type: ignore[misc]
        context = context_for(asked.plain)
        if not only or "compaction" in only:
            async with open_bench(services, name, scaffold, context=context, provider=provider) as small:
                await ask("compaction", lambda: asked.compaction(small))

    async def drift() -> list[Finding]:
        return [asked.drift()]

    await ask("task", drift)
    return passed
