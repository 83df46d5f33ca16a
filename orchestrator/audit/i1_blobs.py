"""I1: an accepted task, and what an attempt left, is there as a whole: every blob that it names is stored, with the content that its name says."""

from orchestrator.audit.statement import Statement, with_trajectories

# Trees are blobs with JSON in them, which name more trees and the parts of files. A subquery reads one tree: in a join, Postgres may read every blob
# as JSON before it looks which ones are trees. What has other content than its name says is not read.
_TREE = "(select convert_from(body, 'UTF8')::jsonb from blobs where blobs.sha = trees.sha and sha256(body) = trees.sha)"
_NAMED = f"""
    with recursive documents(document) as (select body from tasks where run_id = :run),
    trees(sha) as (
        select decode(t.name, 'hex')
          from documents, jsonb_each(document -> 'trees') as e(path, names), jsonb_array_elements_text(names) as t(name)
        union
        select decode(t.name, 'hex')
          from trees, jsonb_each({_TREE} -> 'trees') as e(path, names), jsonb_array_elements_text(names) as t(name)),
    named(sha) as (
        select sha from trees
        union
        select decode(p.name, 'hex')
          from (select document from documents
                union all
                select {_TREE} from trees) as d(document),
               jsonb_each(document -> 'blobs') as e(path, file), jsonb_array_elements_text(file -> 'parts') as p(name)
        union
        select unnest(parts) from artifacts where run_id = :run)"""


BLOBS = (
    Statement(
        invariant="I1",
        name="blobs of tasks and attempts are stored",
        examined=f"({_NAMED} select sha from named) as n",
        broken=f"{_NAMED} select encode(named.sha, 'hex') as sha from named left join blobs using (sha) where blobs.sha is null",
        says="a task or an attempt names the blob {sha}, which is not stored: no sandbox can get its file",
        skip=with_trajectories,
    ),
    Statement(
        invariant="I1",
        name="blobs hold what their names say",
        examined=f"({_NAMED} select sha from named join blobs using (sha)) as n",
        broken=f"{_NAMED} select encode(sha, 'hex') as sha from named join blobs using (sha) where sha256(body) <> sha",
        says="the blob {sha} has other content than its name says: a task or what an attempt left has changed",
        skip=with_trajectories,
    ),
)
