"""I5: no process or GPU lease outlives its owner by more than its TTL. Times are the database's: now() is the snapshot's."""

from orchestrator.audit.snapshot import Snapshot
from orchestrator.audit.statement import Statement, at_the_end, with_trajectories
from orchestrator.contracts.processes import ProcessRole

# A renewal may have started before this snapshot, and a cleanup takes a moment.
SLACK_S = 5
TAKEN_BACK = "leases that ran out are taken back"
RENEWED = "leases of rollout servers are renewed"


def _alive(process: str, snapshot: Snapshot) -> str:
    if snapshot.ended:
        return "the run has ended"
    if snapshot.outside.alive is None:
        return f"it is not known whether the {process} lives"
    return "" if snapshot.lives(process) else f"no {process} has lived for a while: leases wait for one"


def _reaper_alive(snapshot: Snapshot) -> str:
    return _alive(ProcessRole.ORCHESTRATOR, snapshot)


def _gateway_alive(snapshot: Snapshot) -> str:
    return _alive(ProcessRole.GATEWAY, snapshot)


LEASES = (
    # Leased work has a lease end, else the reaper never finds it; a lease on anything else has outlived its work.
    Statement(
        invariant="I5",
        name="leases are on what is being worked on",
        examined="rollouts where run_id = :run",
        broken="""select rollout_id, state, lease_owner, lease_epoch, lease_until from rollouts
            where run_id = :run
              and ((state in ('running', 'verifying', 'reported')) <> (lease_until is not null)
                or (lease_owner is not null and state not in ('running', 'verifying')))""",
        says="rollout {rollout_id} is {state} with a lease of {lease_owner} until {lease_until}",
    ),
    # A renewal gives one TTL from now: a longer lease would outlive a dead owner by more than that. A reported rollout waits for its
    # steps for up to `timeouts.arrival_s`.
    Statement(
        invariant="I5",
        name="leases are no longer than their time to live",
        examined="rollouts where run_id = :run and lease_until is not null",
        broken=f"""select rollout_id, state, lease_owner, lease_until, extract(epoch from lease_until - now())::float8 as left_s from rollouts
            where run_id = :run
              and lease_until > now() + make_interval(secs => {SLACK_S} + greatest(:ttl, case state when 'reported' then :arrival else 0 end))""",
        says="rollout {rollout_id} ({state}) is leased for another {left_s:.0f} s, which is more than one time to live",
    ),
    # The reaper scans every min(1 s, TTL/10); after an absence, its own or Postgres's, it gives one full TTL. A lease that expired
    # earlier than that was forgotten.
    Statement(
        invariant="I5",
        name=TAKEN_BACK,
        examined="rollouts where run_id = :run and lease_until is not null",
        broken="""select rollout_id, state, lease_owner, lease_epoch, lease_until, extract(epoch from now() - lease_until)::float8 as late_s
             from rollouts where run_id = :run and lease_until < now() - make_interval(secs => :ttl + least(1, :ttl / 10))
              and pg_postmaster_start_time() < now() - make_interval(secs => :ttl + :reconnect)""",
        says="the lease of rollout {rollout_id} ({state}, {lease_owner}, epoch {lease_epoch}) ran out {late_s:.0f} s ago, and was not taken back",
        skip=_reaper_alive,
    ),
    Statement(
        invariant="I5",
        name="nothing runs when the run has ended",
        examined="rollouts where run_id = :run",
        broken="""select r.rollout_id, r.state, r.lease_owner, g.purpose from rollouts r join groups g on g.group_id = r.group_id
            where r.run_id = :run and (r.state in ('running', 'verifying') or r.lease_until is not null)
              and (g.purpose = 'train' or :all_groups)""",
        says="the run has ended, but attempt of rollout {rollout_id} is still {state} (lease of {lease_owner})",
        skip=at_the_end,
    ),
    # Epochs fence: each is leased once, so two attempts under one epoch, or one beyond the current, mean two owners at once.
    Statement(
        invariant="I5",
        name="lease epochs are leased once",
        examined="attempts where run_id = :run",
        broken="""select a.rollout_id, a.attempt, a.epoch, r.attempt as current_attempt, r.lease_epoch from attempts a
             left join rollouts r on r.rollout_id = a.rollout_id and r.run_id = a.run_id
            where a.run_id = :run
              and (r.rollout_id is null or a.attempt > r.attempt or a.epoch > r.lease_epoch or a.attempt < 1
                or exists (select 1 from attempts b where b.rollout_id = a.rollout_id and b.attempt < a.attempt and b.epoch >= a.epoch))""",
        says="attempt {attempt} of rollout {rollout_id} has epoch {epoch}: an earlier attempt has it too, or the rollout (attempt {current_attempt}, "
        "epoch {lease_epoch}) never came so far",
    ),
    Statement(
        invariant="I5",
        name="steps are of the epoch of their attempt",
        examined="steps where run_id = :run",
        broken="""select s.rollout_id, s.attempt, s.idx, s.epoch, a.epoch as leased from steps s
             left join attempts a on a.rollout_id = s.rollout_id and a.attempt = s.attempt
            where s.run_id = :run and (a.epoch is null or s.epoch > a.epoch)""",
        says="step {rollout_id}:{attempt}:{idx} was written under epoch {epoch}, its attempt was leased under {leased}",
        skip=with_trajectories,
    ),
    # Only a gateway moves a server to a version, and its name stays in the row.
    Statement(
        invariant="I5",
        name="rollout servers have an owner",
        examined="rollout_servers where run_id = :run",
        broken="""select server_id, url, state, version from rollout_servers
            where run_id = :run and owner is null and (state <> 'starting' or lease_until is not null)""",
        says="rollout server {server_id} ({url}) is {state}, but no gateway ever leased it",
    ),
    Statement(
        invariant="I5",
        name="rollout servers have one owner",
        examined="rollout_servers where run_id = :run and lease_until > now()",
        broken="""select s.server_id, s.url, s.owner, o.run_id as other_run, o.owner as other_owner
             from rollout_servers s join rollout_servers o on o.url = s.url and o.server_id <> s.server_id
            where s.run_id = :run and s.lease_until > now() and o.lease_until > now()""",
        says="rollout server {server_id} ({url}) is leased by {owner} and by {other_owner} of run {other_run}",
    ),
    # A living gateway renews its leases, or takes over expired ones.
    Statement(
        invariant="I5",
        name=RENEWED,
        examined="rollout_servers where run_id = :run and lease_until is not null",
        broken="""select server_id, url, owner, extract(epoch from now() - lease_until)::float8 as late_s from rollout_servers
            where run_id = :run and lease_until < now() - make_interval(secs => :server_ttl)
              and pg_postmaster_start_time() < now() - make_interval(secs => :server_ttl + :reconnect)""",
        says="the lease of rollout server {server_id} ({url}, {owner}) ran out {late_s:.0f} s ago, and no gateway took it over",
        skip=_gateway_alive,
    ),
)
