"""What the demo shows while the loop runs: one line a second, from SQL."""

from dataclasses import dataclass

import anyio
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


PLAIN_S = 10.0  # between two lines where no terminal looks


@dataclass(slots=True)
class Progress:
    """Prints a snapshot at every tick over the one before; where no terminal looks, a line every ten seconds, and the last."""

    client: Client
    console: Console
    began: float | None = None
    told: tuple[float, int] | None = None  # when a line was printed, and the steps that there were

    async def tick(self) -> None:
        """About a second has passed."""
        now = anyio.current_time()
        self.began = now if self.began is None else self.began
        if self.console.is_terminal:
            line = await self._line(now)
            self.console.print(
                f"\r\x1b[2K{line[: self.console.width - 1]}",
                end="",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        elif self.told is None or now - self.told[0] >= PLAIN_S:
            self.console.print(await self._line(now), highlight=False, markup=False, soft_wrap=True)

    async def end(self) -> None:
        """Where it ended."""
        if self.console.is_terminal:
            await self.tick()
            self.console.print()
        elif self.began is not None:
            self.console.print(
                await self._line(anyio.current_time()), highlight=False, markup=False, soft_wrap=True
            )

    async def _line(self, now: float) -> str:
        """A snapshot; its rate is since the line before, which the first has not."""
        row = (await self.client.rows(SNAPSHOT))[0]
        rate = "  -"
        if self.told is not None and now > self.told[0]:
            rate = f"{(row.steps - self.told[1]) / (now - self.told[0]):3.0f}"
        self.told = (now, row.steps)
        at = 0.0 if self.began is None else now - self.began
        return (
            f"{at:4.0f} s  v{row.version}  groups {row.trained} trained {row.filtered} filtered {row.in_flight} in flight "
            f"{row.waiting} waiting  rollouts {row.running} running {row.verifying} verifying  {rate} steps/s  "
            f"head {row.head if row.head is not None else '-'} ready {row.ready}  stale {row.stale if row.stale is not None else '-'}  "
            f"reward {row.reward if row.reward is not None else '-'} [{row.by_domain or ''}]"
        )
