"""/api/groups: the list, one group, and the differences between the files of two members."""

from orchestrator.queries import groups, search
from orchestrator.queries.differences import FileDifference
from orchestrator.queries.filters import GroupFilters
from orchestrator.web.api.rollouts import filters_of
from orchestrator.web.requests import Query, get


async def _list(query: Query) -> search.GroupPage:
    before = query.number("before", 0)
    return await search.group_list(
        query.connection,
        query.run.run_id,
        GroupFilters.of(filters_of(query)),
        before=before or None,
        n=query.number("n", search.PAGE, least=1, most=search.MAX_PAGE),
    )


async def _group(query: Query) -> groups.Group:
    return await groups.group(query.connection, query.run.run_id, query.key("group_id"))


async def _difference(query: Query) -> list[FileDifference]:
    left, right = query.number("left", 0, most=32767), query.number("right", 1, most=32767)
    group_id = query.key("group_id")
    return await groups.group_differences(query.connection, query.run.run_id, group_id, left, right)


ROUTES = [
    get("/api/groups", _list),
    get("/api/groups/{group_id}", _group),
    get("/api/groups/{group_id}/difference", _difference),
]
