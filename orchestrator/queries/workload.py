"""Workload of a run over a stretch of time, from its data pool: the statements behind `workload_figures`. `:within` is a multirange of time,
`:since` and `:until` its ends, for the indexes.

Waiting is separated from working. Between two states of a rollout, time without a free slot does not count as the platform's (`LEASED`,
`SETTLED`). A dispatched group waited since there was room for it, not since it was accepted (`ADMITTED`).
"""

COMMITS = """
SELECT batch_no, committed FROM batches WHERE run_id = :run AND state = 'committed' AND batch_no BETWEEN :first AND :last ORDER BY batch_no
"""
WITHIN = "{time} > :since AND {time} <= :until AND {time} <@ CAST(CAST(:within AS text) AS tstzmultirange)"
LATELY = "{time} > CAST(:since AS timestamptz) - interval '1 hour' AND {time} <= :until"
OF_SPAN = f"run_id = :run AND {WITHIN}"
LEFT = "a.ended - make_interval(secs => :report_s)"  # end of its slot; `ended` is recorded later
TRAIN = "JOIN rollouts r USING (rollout_id) JOIN groups g USING (group_id)"
SPREAD = """
, alike AS (SELECT count(*) AS n, var_samp(s) * (count(*) - 1) AS squares FROM x GROUP BY group_id HAVING count(*) > 1)
SELECT count(*) AS n, avg(s) AS held, coalesce(stddev_samp(s) / nullif(avg(s), 0), 0) AS cv,
       coalesce(1 - (SELECT sum(squares) / sum(n - 1) FROM alike) / nullif(var_samp(s), 0), 0) AS alike
FROM x
"""
"""Over `x`: group_id and seconds. `alike`: the share of the variance between groups (negative: there is none)."""
ATTEMPTS = f"""
WITH x AS (SELECT group_id, greatest(0, extract(epoch FROM a.ended - a.started)::float - :report_s) AS s
           FROM attempts a {TRAIN} WHERE a.{OF_SPAN.format(time="a.ended")} AND g.purpose = 'train')
{SPREAD}
"""
STEPS = f"""
SELECT count(*) AS n, coalesce(sum(s.t_gen), 0) AS generation, coalesce(sum(s.t_gap), 0) AS gap,
       coalesce(sum(length(s.action) / 4), 0) AS tokens, coalesce(sum(length(s.delta) / 4), 0) AS added, count(DISTINCT n.gateway) AS gateways
FROM steps s {TRAIN} LEFT JOIN sessions n ON n.rollout_id = s.rollout_id AND n.attempt = s.attempt AND n.epoch = s.epoch
WHERE s.{OF_SPAN.format(time="s.at")} AND g.purpose = 'train'
"""
CALLS = f"""
SELECT count(*)::float / count(DISTINCT (s.rollout_id, s.attempt)) FROM steps s JOIN attempts a USING (rollout_id, attempt) {TRAIN}
WHERE s.run_id = :run AND {WITHIN.format(time="a.ended")} AND g.purpose = 'train'
"""
AT_ONCE = f"""
SELECT coalesce(max(calls), 1) FROM (
  SELECT sum(one) OVER (ORDER BY at, one) AS calls FROM (
    SELECT at, -1 AS one FROM steps WHERE {OF_SPAN.format(time="at")} AND t_gen > 0 UNION ALL
    SELECT at - make_interval(secs => t_gen), 1 FROM steps WHERE {OF_SPAN.format(time="at")} AND t_gen > 0) e) x
"""
WAITED = """
, events AS (
  SELECT began AS at, 1 AS one, since, counts FROM held UNION ALL
  SELECT over, -1, NULL, false FROM held WHERE over IS NOT NULL),
occupied AS (SELECT *, sum(one) OVER (ORDER BY at, one) AS busy FROM events),
freed AS (SELECT *, max(at) FILTER (WHERE one = -1 AND busy >= :slots - 1) OVER (ORDER BY at, one) AS room FROM occupied),
waited AS (SELECT extract(epoch FROM at - greatest(since, room))::float AS s FROM freed
           WHERE one = 1 AND counts AND {within})
SELECT coalesce(avg(s), 0) AS mean, coalesce(stddev_samp(s) / nullif(avg(s), 0), 0) AS cv FROM waited
"""
"""Over `held`: start, end (NULL: not over), earliest possible start, whether it counts. `room`: when a slot was last freed while all were
busy."""
LEASED = f"""
WITH held AS (
  SELECT a.started AS began, CASE WHEN a.ended IS NOT NULL THEN greatest(a.started, {LEFT}) END AS over,
         g.dispatched AS since, g.purpose = 'train' AND a.attempt = 1 AS counts
  FROM attempts a {TRAIN} WHERE a.run_id = :run AND a.started <= :until AND (a.ended IS NULL OR a.ended > :since))
{WAITED.format(within=WITHIN.format(time="at"))}
"""
VERIFIED = """
held AS (
  SELECT b.at AS began, least(v.at, b.at + make_interval(secs => w.verify_s)) AS over, v.at AS reported, d.at AS since, true AS counts, group_id
  FROM transitions v
  JOIN LATERAL (SELECT at FROM transitions WHERE kind = 'rollout' AND entity_id = v.entity_id AND to_state = 'verifying'
                AND transition_id < v.transition_id ORDER BY transition_id DESC LIMIT 1) b ON true
  JOIN LATERAL (SELECT at FROM transitions WHERE kind = 'rollout' AND entity_id = v.entity_id AND to_state = 'reported'
                AND transition_id < v.transition_id ORDER BY transition_id DESC LIMIT 1) d ON true
  JOIN LATERAL (SELECT verify_s FROM verdicts WHERE rollout_id = v.entity_id ORDER BY revision LIMIT 1) w ON true
  JOIN rollouts r ON r.rollout_id = v.entity_id JOIN groups g USING (group_id)
  WHERE v.run_id = :run AND v.kind = 'rollout' AND v.to_state = 'verified' AND v.at > :since AND v.at <= :until AND g.purpose = 'train')
"""
SETTLED = f"WITH {VERIFIED}{WAITED.format(within=WITHIN.format(time='at'))}"
VERIFICATIONS = f"""
WITH {VERIFIED}
, x AS (SELECT group_id, extract(epoch FROM over - began)::float AS s FROM held WHERE {WITHIN.format(time="over")})
{SPREAD}
"""
REPORT_DELAY = f"""
WITH {VERIFIED}
SELECT coalesce(avg(extract(epoch FROM reported - over)), 0)::float FROM held WHERE {WITHIN.format(time="reported")}
"""
"""Delay of verdicts: the end of the slot of a rollout is not recorded, but its result takes the same way."""
ADMITTED = f"""
WITH events AS (
  SELECT committed AS at, NULL::timestamptz AS dispatched FROM batches WHERE run_id = :run AND {LATELY.format(time="committed")} UNION ALL
  SELECT ended, NULL FROM attempts WHERE run_id = :run AND {LATELY.format(time="ended")} UNION ALL
  SELECT ended, NULL FROM groups WHERE run_id = :run AND state IN ('filtered', 'dead') AND {LATELY.format(time="ended")} UNION ALL
  SELECT created, NULL FROM groups WHERE run_id = :run AND purpose = 'train' AND {LATELY.format(time="created")} UNION ALL
  SELECT dispatched, dispatched FROM groups WHERE run_id = :run AND purpose = 'train' AND {LATELY.format(time="dispatched")}),
looked AS (SELECT dispatched, max(at) FILTER (WHERE dispatched IS NULL) OVER (ORDER BY at, dispatched NULLS FIRST) AS room FROM events)
SELECT coalesce(avg(extract(epoch FROM dispatched - room)), 0)::float FROM looked
WHERE {WITHIN.format(time="dispatched")}
"""
"""Since the last event before a dispatch that may have made room for it."""
CONCLUDED = f"""
SELECT coalesce(avg(extract(epoch FROM g.ready - v.last)), 0)::float
FROM groups g JOIN LATERAL (
  SELECT max(t.at) AS last FROM rollouts r JOIN transitions t ON t.kind = 'rollout' AND t.entity_id = r.rollout_id AND t.to_state = 'verified'
  WHERE r.group_id = g.group_id AND t.at <= g.ready) v ON true
WHERE g.run_id = :run AND g.purpose = 'train' AND {WITHIN.format(time="g.ready")}
"""
TRAINING = f"""
SELECT count(*) AS n, sum(size) AS groups, coalesce(sum(extract(epoch FROM committed - closed)), 0) AS busy,
       coalesce(sum(u.merged), 0) AS merged, coalesce(sum(u.fixed), 0) AS fixed
FROM batches b JOIN LATERAL (
  SELECT sum((metrics->>'tokens_merged')::float) AS merged,
         sum(coalesce((metrics->'seconds'->>'save')::float, 0) + coalesce((metrics->'seconds'->>'commit')::float, 0)) AS fixed
  FROM train_steps WHERE batch_id = b.batch_id) u ON true
WHERE b.run_id = :run AND b.state = 'committed' AND {WITHIN.format(time="b.committed")}
"""
GROUPS = f"""
SELECT count(*) FILTER (WHERE state = 'filtered' AND reason <> 'run_ended') AS filtered, count(*) FILTER (WHERE state = 'trained') AS trained,
       coalesce(percentile_cont(:share) WITHIN GROUP (ORDER BY extract(epoch FROM ready - dispatched)) FILTER (WHERE ready IS NOT NULL)
                / nullif(avg(extract(epoch FROM ready - dispatched)), 0), 1) AS longest
FROM groups WHERE purpose = 'train' AND {OF_SPAN.format(time="ended")}
"""
CLAIMED = f"""
SELECT coalesce(avg(extract(epoch FROM b.closed - greatest(g.ready, p.committed))), 0)::float
FROM batches b JOIN batches p ON p.run_id = b.run_id AND p.batch_no = b.batch_no - 1 AND p.state = 'committed'
JOIN LATERAL (SELECT max(t.at) AS ready FROM batch_items i JOIN transitions t ON t.kind = 'group' AND t.entity_id = i.group_id
                WHERE i.batch_id = b.batch_id AND NOT i.voided AND t.to_state = 'ready' AND t.at <= i.taken) g ON true
WHERE b.run_id = :run AND b.state = 'committed' AND {WITHIN.format(time="b.committed")}
"""
AGED = f"""
SELECT avg(b.batch_no - width_bucket(g.dispatched, commits.at))::float
FROM (SELECT array_agg(committed ORDER BY committed) AS at FROM batches WHERE run_id = :run AND state = 'committed') commits,
  batches b JOIN batch_items i USING (batch_id) JOIN groups g USING (group_id)
WHERE b.run_id = :run AND b.state = 'committed' AND NOT i.voided AND {WITHIN.format(time="b.committed")}
"""
HELD = f"""
SELECT coalesce(sum(greatest(0, extract(epoch FROM least({LEFT}, upper(part)) - greatest(a.started, lower(part))))), 0)
FROM attempts a {TRAIN} JOIN unnest(CAST(CAST(:within AS text) AS tstzmultirange)) AS part
  ON a.started < upper(part) AND (a.ended IS NULL OR a.ended > lower(part))
WHERE a.run_id = :run AND g.purpose = 'train' AND a.started < :until
"""
STORED = """
SELECT (SELECT coalesce(sum(pg_total_relation_size(relid)), 0) FROM unnest(ARRAY['steps', 'messages', 'prompts']) AS of(name),
        pg_partition_tree(of.name::regclass) WHERE relid = to_regclass(of.name || '_' || :name))::float
     / nullif((SELECT count(*) FROM steps WHERE run_id = :run), 0)
"""
NEWEST = "SELECT path FROM policy_versions WHERE run_id = :run ORDER BY version DESC LIMIT 1"
