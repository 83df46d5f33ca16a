"""I2: a group enters at most one committed batch, and a committed batch matches its claim."""

from typing import Any

import msgspec

from orchestrator.audit.findings import Checked, Findings
from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement
from orchestrator.contracts.ids import sha256

_ITEMS = "batch_items i join batches b on b.batch_id = i.batch_id where b.run_id = :run"

BATCHES = (
    # The invariant itself. It ignores the flag of an item: the batch's state decides.
    Statement(
        invariant="I2",
        name="groups are trained once",
        examined=_ITEMS + " and b.state = 'committed'",
        broken="""select i.group_id, array_agg(b.batch_no order by b.batch_no) as batches
             from batch_items i join batches b on b.batch_id = i.batch_id
            where b.run_id = :run and b.state = 'committed'
            group by i.group_id having count(*) > 1""",
        says="group {group_id} is in more than one committed batch: {batches}",
    ),
    # The unique index that forbids a second batch leaves out voided items: the flag must match the batch's state.
    Statement(
        invariant="I2",
        name="items are voided with their batch",
        examined=_ITEMS,
        broken="""select i.batch_id, b.batch_no, b.state, i.group_id, i.voided from batch_items i join batches b on b.batch_id = i.batch_id
            where b.run_id = :run and i.voided <> (b.state = 'voided')""",
        says="group {group_id} in batch {batch_no} (batch_id {batch_id}, {state}) has voided = {voided}",
    ),
    # trained = that batch is committed; taken = a row in a batch: the same transaction writes both.
    Statement(
        invariant="I2",
        name="taken and trained groups are in a batch",
        examined="groups where run_id = :run and state in ('taken', 'trained')",
        broken="""select g.group_id, g.seq, g.state from groups g
            where g.run_id = :run and g.state in ('taken', 'trained')
              and not exists (select 1 from batch_items i join batches b on b.batch_id = i.batch_id
                               where i.group_id = g.group_id and b.run_id = g.run_id
                                 and b.state = any(case g.state when 'trained' then array['committed'] else array['open', 'closed'] end))""",
        says="group {group_id} is {state}, but no batch that this could be from has it",
    ),
    Statement(
        invariant="I2",
        name="groups of a batch are taken, of a committed one trained",
        examined=_ITEMS + " and b.state <> 'voided'",
        broken="""select i.group_id, g.state, b.batch_no, b.state as batch_state
             from batch_items i join batches b on b.batch_id = i.batch_id join groups g on g.group_id = i.group_id
            where b.run_id = :run and b.state <> 'voided'
              and (g.run_id <> b.run_id or g.state <> case b.state when 'committed' then 'trained' else 'taken' end)""",
        says="batch {batch_no} is {batch_state}, but its group {group_id} is {state}",
    ),
    # A take pins the group's rewarded rollouts: every group has some, and every rollout belongs to a group of the batch.
    Statement(
        invariant="I2",
        name="rollouts of a batch are of its groups",
        examined="batch_rollouts br join batches b on b.batch_id = br.batch_id where b.run_id = :run",
        broken="""select b.batch_no, b.batch_id, i.group_id, null::bigint as rollout_id,
                  'has group ' || i.group_id || ', but none of its rollouts' as problem
             from batch_items i join batches b on b.batch_id = i.batch_id
            where b.run_id = :run
              and not exists (select 1 from batch_rollouts br where br.batch_id = i.batch_id and br.group_id = i.group_id)
           union all
           select b.batch_no, b.batch_id, br.group_id, br.rollout_id,
                  'has rollout ' || br.rollout_id || ' of group ' || br.group_id || ', which is not a rollout of a group that it took'
             from batch_rollouts br join batches b on b.batch_id = br.batch_id
            where b.run_id = :run
              and not exists (select 1 from batch_items i join rollouts r on r.group_id = i.group_id
                               where i.batch_id = br.batch_id and i.group_id = br.group_id and r.rollout_id = br.rollout_id)""",
        says="batch {batch_no} {problem}",
    ),
    Statement(
        invariant="I2",
        name="sizes of batches",
        examined="batches where run_id = :run and state in ('closed', 'committed')",
        broken="""select b.batch_no, b.size, count(i.pos) as items from batches b left join batch_items i on i.batch_id = b.batch_id
            where b.run_id = :run and b.state in ('closed', 'committed')
            group by b.batch_id having b.size <> count(i.pos)""",
        says="batch {batch_no} says that it has {size} groups, but took {items}",
    ),
    # Admission reads only the newest batch for the total.
    Statement(
        invariant="I2",
        name="batches count the groups before them",
        examined="batches where run_id = :run and state = 'committed'",
        broken="""select batch_no, groups_so_far, total from (
             select batch_no, groups_so_far, sum(size) over (order by batch_no) as total
               from batches where run_id = :run and state = 'committed') b
            where groups_so_far <> total""",
        says="batch {batch_no} says that {groups_so_far} groups were trained with it, but it and those before it have {total}",
    ),
    # Numbers that count are 0, 1, 2 …: voiding a batch frees its number. A gap is a lost batch.
    Statement(
        invariant="I2",
        name="batch numbers have no gaps",
        examined="batches where run_id = :run and state <> 'voided'",
        broken="""select batch_no, after, array[batch_id] as batch_ids from (
             select batch_no, batch_id, lag(batch_no) over (order by batch_no) as after
               from batches where run_id = :run and state <> 'voided') b
            where batch_no <> coalesce(after + 1, 0)""",
        says="batch {batch_no} does not follow the one before it ({after}): numbers have no gaps and are not used twice",
    ),
    # Batches are claimed one at a time: an uncommitted batch is the last one.
    Statement(
        invariant="I2",
        name="one batch at a time",
        examined="batches where run_id = :run and state in ('open', 'closed')",
        broken="""select b.batch_no, b.state, min(later.batch_no) as later from batches b join batches later on later.run_id = b.run_id
            and later.batch_no > b.batch_no and later.state <> 'voided'
            where b.run_id = :run and b.state in ('open', 'closed') group by b.batch_id""",
        says="batch {batch_no} is still {state}, although batch {later} came after it",
    ),
    # Train steps are written by the commit of their batch: at least one, in parts 0, 1, …; none before.
    Statement(
        invariant="I2",
        name="train steps of a batch",
        examined="batches where run_id = :run",
        broken="""select b.batch_no, b.state, array_agg(t.part order by t.part) filter (where t.part is not null) as parts
             from batches b left join train_steps t on t.batch_id = b.batch_id
            where b.run_id = :run
            group by b.batch_id
           having (b.state = 'committed' and (count(t.part) = 0 or min(t.part) <> 0 or max(t.part) <> count(t.part) - 1))
               or (b.state in ('open', 'closed') and count(t.part) > 0)""",
        says="batch {batch_no} is {state}, but its train steps are of parts {parts}",
    ),
    # Numbered once, in commit order; a rewind does not reuse numbers.
    Statement(
        invariant="I2",
        name="train steps are numbered without gaps",
        examined="train_steps where run_id = :run",
        broken="""select train_step, batch_id, part, expected from (
             select train_step, batch_id, part, row_number() over (order by batch_id, part) as expected
               from train_steps where run_id = :run) t
            where train_step <> expected""",
        says="train step {train_step} (batch_id {batch_id}, part {part}) should be number {expected}",
    ),
    # One transaction commits the batch and publishes its version; a version without it would serve weights of a batch that may train
    # again. A version that a rewind publishes again has the manifest of the committed one.
    Statement(
        invariant="I2",
        name="versions are of committed batches",
        examined="policy_versions where run_id = :run and batch_no is not null",
        broken="""select p.version, p.batch_no from policy_versions p
            where p.run_id = :run and p.batch_no is not null and p.superseded_by is null
              and not exists (select 1 from batches b join policy_versions m on m.run_id = b.run_id and m.version = b.version
                               where b.run_id = p.run_id and b.batch_no = p.batch_no and b.state = 'committed'
                                 and m.manifest_sha = p.manifest_sha)""",
        says="version {version} is of batch {batch_no}, which is not committed with it",
    ),
    # A rewind voids a batch and supersedes its version in one transaction.
    Statement(
        invariant="I2",
        name="superseded versions are of undone batches",
        examined="policy_versions where run_id = :run and superseded_by is not null",
        broken="""select p.version, p.superseded_by, b.batch_no from policy_versions p
             join batches b on b.run_id = p.run_id and b.version = p.version and b.state = 'committed'
            where p.run_id = :run and p.superseded_by is not null""",
        says="version {version} is superseded by {superseded_by}, but its batch {batch_no} still counts as committed",
    ),
    Statement(
        invariant="I2",
        name="committed batches have a version",
        examined="batches where run_id = :run and state = 'committed'",
        broken="""select b.batch_no, b.version from batches b
            where b.run_id = :run and b.state = 'committed'
              and not exists (select 1 from policy_versions p where p.run_id = b.run_id and p.version = b.version
                                and p.batch_no = b.batch_no)""",
        says="batch {batch_no} is committed, but its version {version} does not exist, or is of another batch",
    ),
)

_CONTENTS = """select b.batch_id, b.batch_no, b.state, b.digest, br.group_id, br.rollout_id, br.attempt, br.reward_revision, br.baseline,
                      br.divisor, br.advantage, cast(w.per_step as text) as per_step
                 from batches b left join batch_rollouts br on br.batch_id = b.batch_id
                 left join rewards w on w.rollout_id = br.rollout_id and w.revision = br.reward_revision
                where b.run_id = :run and b.batch_id = any(cast(:batch_ids as bigint[]))
                order by b.batch_id, br.group_id, br.rollout_id"""
PAGE = 50  # batches in memory at a time


async def digests(snapshot: Snapshot) -> Checked:
    """A closed batch's contents are fixed by its digest, so that a crash trains the same again: recompute each digest from its rows. That of a
    batch that was closed before digests covered the advantage and weight of every step is over the rollouts alone."""
    findings = Findings(invariant="I2", name="digests of batches")
    ids = await snapshot.rows(
        "select batch_id from batches where run_id = :run and digest is not null order by batch_id"
    )
    for start in range(0, len(ids), PAGE):
        page = [row.batch_id for row in ids[start : start + PAGE]]
        contents: dict[int, list[list[Any]]] = {batch_id: [] for batch_id in page}
        batches = {}
        for row in await snapshot.rows(_CONTENTS, batch_ids=page):
            batches[row.batch_id] = row
            if row.rollout_id is not None:
                contents[row.batch_id].append(
                    [
                        row.group_id,
                        row.rollout_id,
                        row.attempt,
                        row.reward_revision,
                        row.baseline,
                        row.divisor,
                        row.advantage,
                        [
                            [step["advantage"], step["weight"]]
                            for step in msgspec.json.decode(row.per_step or "[]")
                        ],
                    ]
                )
        for batch_id, content in contents.items():
            batch = batches[batch_id]
            findings.examined += 1
            forms = (content, [row[:-1] for row in content])
            if batch.digest not in {sha256(msgspec.json.encode(form)) for form in forms}:
                findings.add(
                    f"batch {batch.batch_no} ({batch.state}) does not hold what its digest says",
                    batch_id=batch_id,
                    batch_no=batch.batch_no,
                    rollouts=len(content),
                )
    return findings.checked()
