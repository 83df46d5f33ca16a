"""/api/me: data that every page needs once: the runs of this database, the requested run, and the key for steering."""

from dataclasses import dataclass

from orchestrator.queries.runs import RunLine, runs
from orchestrator.web.requests import Query, get


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """`home`: the run of this dashboard's configuration. `steering`: the value of the header X-Penstock-Steer."""

    run: str
    home: str
    runs: list[RunLine]
    steering: str


async def _me(query: Query) -> Me:
    found = await runs(query.connection)
    return Me(run=query.run.name, home=query.site.run, runs=found, steering=query.site.keys.steering)


ROUTES = [get("/api/me", _me)]
