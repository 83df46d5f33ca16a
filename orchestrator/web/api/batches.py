"""/api/batches: the list, one batch, and its prefix tree with the text of each node's first tokens."""

from dataclasses import dataclass

from orchestrator.queries import batches, token_text
from orchestrator.queries.tree import DRAWN
from orchestrator.web.requests import Query, get

MAX_DRAWN = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTree:
    """The tree, its ratio, and per node the text of its first tokens; None without the policy's tokenizer, with the reason in `note`."""

    batch: batches.BatchTree
    ratio: float
    heads: list[str] | None
    note: str | None


async def _list(query: Query) -> list[batches.BatchRow]:
    before = query.number("before", 2**31 - 1, most=2**31 - 1)
    n = query.number("n", 50, least=1, most=500)
    return await batches.batch_list(query.connection, query.run.run_id, before=before, n=n)


def _number(query: Query) -> int:
    """A batch's number, bounded by its column type in the data pool."""
    return min(query.key("batch_no"), 2**31 - 1)


async def _batch(query: Query) -> batches.Batch:
    return await batches.batch(query.connection, query.run.run_id, _number(query))


async def _tree(query: Query) -> DrawnTree:
    parts = query.number("of", 0, most=1_000)
    part = (query.number("part", 0, most=1_000), parts) if parts else None
    drawn = query.number("drawn", DRAWN, least=1, most=MAX_DRAWN)
    found = await batches.batch_tree(
        query.connection, query.run.run_id, _number(query), part=part, drawn=drawn
    )
    spelled = await token_text.run_detokenizer(query.connection, query.run.run_id)
    known = spelled.detokenizer
    heads = None if known is None else ["".join(known.texts(node.head)) for node in found.tree.nodes]
    return DrawnTree(batch=found, ratio=found.tree.ratio, heads=heads, note=spelled.note)


ROUTES = [
    get("/api/batches", _list),
    get("/api/batches/{batch_no}", _batch),
    get("/api/batches/{batch_no}/tree", _tree),
]
