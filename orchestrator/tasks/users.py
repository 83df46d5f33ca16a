"""The users that a task names, and whether the run's sandboxes have them."""

from collections.abc import Iterator

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.settings import TaskSettings
from sandboxes.base import Provider
from sandboxes.users import own, refusal


def refusals(settings: TaskSettings, provider: Provider | type[Provider]) -> Iterator[str]:
    """Why the sandboxes of a run do not run programs as the users of a task or of one of its steps, as sentences."""
    for table, user in (("[agent]", settings.agent.user), ("[verifier]", settings.verifier.user)):
        if (why := refusal(provider, user)) is not None:
            yield f"task.toml: {table}.user = {quoted(user)} is not honoured: {why}"


def of_steps(settings: TaskSettings) -> Iterator[str]:
    """A sentence, if steps of a task name different users of the agent: they share its sandbox."""
    first, *others = settings.agent_users
    if others:
        yield (
            f"task.toml: [[steps]].agent.user: {quoted(others[0])} is not honoured next to {quoted(first or 'agent')}: the steps of a task share one "
            "sandbox and its user, name the same in all, or write it in [agent]"
        )


def unknown(environment: Environment, table: str) -> Iterator[str]:
    """A sentence, if a task names a user that can only come from an image, and none is built."""
    if environment.build is None and own(environment.user) is None and not environment.user.isdecimal():
        yield (
            f"task.toml: {table}.user = {quoted(environment.user)} is not honoured: no image is built that could have this user, "
            "write its uid, or create it by RUN useradd in environment/Dockerfile"
        )
