"""I3, tokens and logprobs: every stored step still matches its digests, and every announced step exists.

Rows are streamed in primary key order: memory holds one page and the chain digests of one attempt.
"""

import msgspec
from sqlalchemy import text

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement, with_trajectories
from orchestrator.contracts.ids import NO_PARENT, chain_sha, row_sha, sha256
from orchestrator.pool.steps import canonical

PAGE = 256  # rows in memory at a time

# counts: the attempt that trains or is scored. All its steps exist; those of other attempts may be on their way, or never come.
_STEPS = """select s.rollout_id, s.attempt, s.idx, s.parent_idx, s.prompt_sha, p.sha is not null as has_prompt, p.n as prompt_len, s.keep_len,
                   s.full_len, s.spans, s.v_lo, s.v_hi, s.sampling_id, s.chain_sha, s.row_sha, s.delta, s.action, s.logprobs,
                   r.rollout_id is not null as owned,
                   coalesce(r.attempt = s.attempt and r.state in ('finished', 'verifying', 'verified'), false) as counts
              from steps s
              left join prompts p on p.run_id = s.run_id and p.sha = s.prompt_sha
              left join rollouts r on r.rollout_id = s.rollout_id and r.run_id = s.run_id
             where s.run_id = :run{some} order by s.rollout_id, s.attempt, s.idx"""
_SOME = " and s.rollout_id = any(cast(:some as bigint[]))"


async def sample_of(snapshot: Snapshot) -> list[int] | None:
    """The rollouts whose bytes are checked; None: all."""
    sample_size = snapshot.outside.sample
    if sample_size is None:
        return None
    rows = await snapshot.rows(
        "select rollout_id from rollouts where run_id = :run order by random() limit :sample",
        sample=sample_size,
    )
    return [row.rollout_id for row in rows]


async def step_digests(snapshot: Snapshot, some: list[int] | None) -> Checked:
    """Recompute chain_sha and row_sha of every step from its bytes and from its parent step."""
    findings = Findings(invariant="I3", name="digests of steps")
    if snapshot.pruned:
        return findings.skipped(snapshot.pruned)
    sampling = await _sampling(snapshot)
    statement = _STEPS.format(some=_SOME if some is not None else "")
    result = await snapshot.connection.stream(
        text(statement), snapshot.chosen(statement, {"some": some}), execution_options={"yield_per": PAGE}
    )
    attempt: tuple[int, int] | None = None
    chains: dict[int, tuple[bytes, int]] = {}  # of this attempt: idx → chain_sha and full_len, as stored
    async for row in result:
        if attempt != (row.rollout_id, row.attempt):
            attempt, chains = (row.rollout_id, row.attempt), {}
        findings.examined += 1
        key = {"rollout_id": row.rollout_id, "attempt": row.attempt, "idx": row.idx}
        name = f"step {row.rollout_id}:{row.attempt}:{row.idx}"
        if not row.owned:
            findings.add(f"{name} belongs to no rollout of this run", **key)
        parent: tuple[bytes, int] | None = (NO_PARENT, 0)
        if row.parent_idx is not None:
            parent = chains.get(row.parent_idx)
            if parent is None and row.counts:
                findings.add(f"{name} continues step {row.parent_idx}, which is gone", **key)
        elif row.prompt_sha is not None:
            parent = (row.prompt_sha, row.prompt_len) if row.has_prompt else None
            if parent is None:
                findings.add(f"{name} begins with a prompt that is gone", **key, prompt=row.prompt_sha)
        if parent is not None and row.keep_len > parent[1]:
            findings.add(f"{name} keeps more than there is above it", **key, keep_len=row.keep_len)
        if parent is not None and row.chain_sha != chain_sha(parent[0], row.keep_len, row.delta, row.action):
            findings.add(
                f"{name} has other ids than when it was recorded: chain_sha does not match its bytes", **key
            )
        flat = row.spans
        params = sampling.get(row.sampling_id)
        if params is None or row.row_sha != row_sha(row.chain_sha, row.logprobs, flat, params):
            findings.add(
                f"{name} has other logprobs, versions or sampling parameters than when it was recorded: row_sha does not match its bytes",
                **key,
            )
        versions = flat[::3] or [0]
        if (row.v_lo, row.v_hi) != (min(versions), max(versions)):
            findings.add(
                f"{name} says versions {row.v_lo}…{row.v_hi}, its spans say others", **key, spans=list(flat)
            )
        chains[row.idx] = (row.chain_sha, row.full_len)
    return findings.checked()


async def _sampling(snapshot: Snapshot) -> dict[int, bytes]:
    rows = await snapshot.rows(
        "select sampling_id, cast(params as text) as params from sampling where run_id = :run"
    )
    return {row.sampling_id: canonical(msgspec.json.decode(row.params)) for row in rows}


async def sampling_digests(snapshot: Snapshot) -> Checked:
    """Sampling parameters are content-addressed: many steps share a row."""
    findings = Findings(invariant="I3", name="digests of sampling parameters")
    sampling = await _sampling(snapshot)
    for row in await snapshot.rows("select sampling_id, sha from sampling where run_id = :run"):
        findings.examined += 1
        if sha256(sampling[row.sampling_id]) != row.sha:
            findings.add(
                f"sampling parameters {row.sampling_id} are not those that were recorded",
                sampling_id=row.sampling_id,
            )
    return findings.checked()


async def announced(snapshot: Snapshot, some: list[int] | None) -> Checked:
    """The sealed session announced its number of steps and one digest over all: each of them was acknowledged, so each exists."""
    rollout_condition = " and r.rollout_id = any(cast(:some as bigint[]))" if some is not None else ""
    of_counted = f"""rollouts r join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt
                     where r.run_id = :run and r.state in ('finished', 'verifying', 'verified'){rollout_condition}"""
    statement = Statement(
        invariant="I3",
        name="announced steps are stored",
        examined=of_counted,
        broken=f"""select * from (
              select r.rollout_id, r.attempt, a.steps as announced, s.stored,
                     coalesce(a.digest, sha256(''::bytea)) = s.digest as same_digest
                from (select r.rollout_id as of_rollout from {of_counted}) of_these
                join rollouts r on r.rollout_id = of_these.of_rollout
                join attempts a on a.rollout_id = r.rollout_id and a.attempt = r.attempt
                cross join lateral (
                  select count(*) as stored, sha256(coalesce(string_agg(chain_sha, ''::bytea order by idx), ''::bytea)) as digest
                    from steps s where s.run_id = :run and s.rollout_id = r.rollout_id and s.attempt = r.attempt) s) t
             where announced is distinct from stored or not same_digest""",
        says="rollout {rollout_id} (attempt {attempt}) announced {announced} steps, {stored} are stored; announced digest matches: {same_digest}",
        skip=with_trajectories,
    )
    return await statement.check(snapshot, some=some)
