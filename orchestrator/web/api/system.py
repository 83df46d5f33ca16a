"""/api/system: the running processes; /api/letters: dead letters; /api/actions: actions of people."""

from dataclasses import dataclass

from orchestrator.contracts.dead_letters import LetterKind
from orchestrator.deploy.embedded.process_spec import ProcessStatus
from orchestrator.deploy.embedded.supervisor import read_status
from orchestrator.queries import dead_letters, system
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.web.requests import Query, get


@dataclass(frozen=True, slots=True)
class SystemPage:
    """`supervised`: the processes that `penstock up` keeps alive on this machine; empty if nothing is up, or for another run."""

    system: system.System
    supervised: list[ProcessStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """The newest of both kinds, and the totals."""

    messages: list[dead_letters.LetterLine]
    groups: list[dead_letters.LetterLine]
    all_messages: int
    all_groups: int


async def _system(query: Query) -> SystemPage:
    config = query.config
    found = await system.system(query.connection, query.run, config, QueueSettings.of(config))
    supervised = []
    if query.run.name == query.site.run and query.site.layout is not None:
        status = read_status(query.site.layout)
        if status is not None and status.supervisor.alive:
            supervised = status.processes
    return SystemPage(found, supervised)


async def _letters(query: Query) -> Letters:
    limit = query.number("limit", 50, least=1, most=500)
    messages, groups = query.number("messages_before", 0), query.number("groups_before", 0)
    run_id = query.run.run_id
    return Letters(
        messages=await dead_letters.letters(
            query.connection, run_id, LetterKind.MESSAGE, before=messages, limit=limit
        ),
        groups=await dead_letters.letters(
            query.connection, run_id, LetterKind.GROUP, before=groups, limit=limit
        ),
        all_messages=await dead_letters.count_messages(query.connection, run_id),
        all_groups=await dead_letters.count_groups(query.connection, run_id),
    )


async def _letter(query: Query) -> dead_letters.DeadLetterDetail:
    return await dead_letters.letter(query.connection, query.run.run_id, query.request.match_info["letter"])


async def _actions(query: Query) -> list[dead_letters.ActionLine]:
    return await dead_letters.actions(
        query.connection,
        query.run.run_id,
        before=query.number("before", 0),
        limit=query.number("limit", 50, least=1, most=500),
    )


ROUTES = [
    get("/api/system", _system),
    get("/api/letters", _letters),
    get("/api/letters/{letter}", _letter),
    get("/api/actions", _actions),
]
