"""Whether a task has the level that a run requires (`tasks.require`)."""

from orchestrator.contracts.quote import quoted
from orchestrator.contracts.vetting import Level, Vetting


def check_level(name: str, content_hash: str, required: Level, *known: Vetting | None) -> None:
    """ValueError, one sentence, unless one of the known vettings is about exactly these bytes and reaches the required level."""
    levels = [each.level for each in known if each is not None and each.counts_for(content_hash)]
    reached = max(levels, key=lambda level: level.rank, default=Level.NONE)
    if reached.reaches(required):
        return
    has = f"has only the level {reached.value}" if levels else "has not been vetted as it is now"
    raise ValueError(
        f"task {quoted(name)} {has}, and this run requires {required.value} (tasks.require): run "
        f"`penstock tasks vet DIRECTORY -c RUN --until {required.value}`, correct what it finds, and publish it again"
    )
