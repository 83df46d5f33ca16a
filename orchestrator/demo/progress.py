"""What the demo shows while the loop runs: one line a second, from SQL."""

from dataclasses import dataclass

from rich.console import Console

from orchestrator.demo.phases import Client

SNAPSHOT = """
with g as (select state, count(*) n from groups where run_id = :run and purpose = 'train' group by 1),
     r as (select state, count(*) n from rollouts where run_id = :run group by 1),
     recent as (select w.performance, gr.domain from rewards w join rollouts ro on ro.rollout_id = w.rollout_id
                join groups gr on gr.group_id = ro.group_id
                where w.run_id = :run and gr.purpose = 'train' order by w.at desc limit 200)
select (select coalesce(sum(n), 0) from g where state = 'accepted') as waiting,
       (select coalesce(sum(n), 0) from g where state in ('dispatched', 'ready', 'taken')) as in_flight,
       (select coalesce(sum(n), 0) from g where state = 'trained') as trained,
       (select coalesce(sum(n), 0) from g where state = 'filtered') as filtered,
       (select coalesce(sum(n), 0) from r where state = 'running') as running,
       (select coalesce(sum(n), 0) from r where state in ('finished', 'verifying')) as verifying,
       (select count(*) from steps where run_id = :run) as steps,
       (select min(seq) from window_state where run_id = :run and is_head) as head,
       (select count(*) from window_state where run_id = :run and inside and state = 'ready') as ready,
       (select max(version) from policy_versions where run_id = :run) as version,
       (select round(avg(performance)::numeric, 3) from recent) as reward,
       (select string_agg(d.domain || ' ' || d.p, '  ' order by d.domain) from
          (select domain, round(avg(performance)::numeric, 2) as p from recent group by 1) d) as by_domain,
       (select round(sum(staleness * tokens)::numeric / nullif(sum(tokens), 0), 2) from staleness
         where run_id = :run and batch_no = (select max(batch_no) from batches where run_id = :run and state = 'committed')) as stale
"""


@dataclass(slots=True)
class Progress:
    """Prints a snapshot; `plain` prints one line every ten seconds instead of rewriting one."""

    client: Client
    console: Console
    seconds: float = 0.0
    steps: int = 0

    async def tick(self) -> None:
        """One second has passed."""
        row = (await self.client.rows(SNAPSHOT))[0]
        self.seconds += 1
        rate = row.steps - self.steps
        self.steps = row.steps
        line = (
            f"{self.seconds:4.0f} s  v{row.version}  groups {row.trained} trained {row.filtered} filtered {row.in_flight} in flight "
            f"{row.waiting} waiting  rollouts {row.running} running {row.verifying} verifying  {rate:3d} steps/s  "
            f"head {row.head if row.head is not None else '-'} ready {row.ready}  stale {row.stale if row.stale is not None else '-'}  "
            f"reward {row.reward if row.reward is not None else '-'} [{row.by_domain or ''}]"
        )
        if self.console.is_terminal:
            self.console.print(
                f"\r\x1b[2K{line[: self.console.width - 1]}", end="", highlight=False, soft_wrap=True
            )
        elif self.seconds % 10 == 1:
            self.console.print(line, highlight=False, soft_wrap=True)
