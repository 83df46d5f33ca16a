"""The demo's output while the loop runs: one line a second, from SQL."""

from dataclasses import dataclass

import anyio
from rich.console import Console

from ops.lab.demo.phases import Client

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


PLAIN_S = 10.0  # between two lines without a terminal


@dataclass(slots=True, kw_only=True)
class Progress:
    """Prints a snapshot at every tick over the one before. Without a terminal: a line every ten seconds, and the last one."""

    client: Client
    console: Console
    began: float | None = None
    last_line: tuple[float, int] | None = None  # when the last line was made, and the number of steps then

    async def tick(self) -> None:
        """Called about once a second."""
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
        elif self.last_line is None or now - self.last_line[0] >= PLAIN_S:
            self.console.print(await self._line(now), highlight=False, markup=False, soft_wrap=True)

    async def end(self) -> None:
        """Print the last snapshot."""
        if self.console.is_terminal:
            await self.tick()
            self.console.print()
        elif self.began is not None:
            self.console.print(
                await self._line(anyio.current_time()), highlight=False, markup=False, soft_wrap=True
            )

    async def _line(self, now: float) -> str:
        """A snapshot. Its rate is measured since the line before; the first line has none."""
        row = (await self.client.rows(SNAPSHOT))[0]
        rate = "  -"
        if self.last_line is not None and now > self.last_line[0]:
            rate = f"{(row.steps - self.last_line[1]) / (now - self.last_line[0]):3.0f}"
        self.last_line = (now, row.steps)
        at = 0.0 if self.began is None else now - self.began
        return (
            f"{at:4.0f} s  v{row.version}  groups {row.trained} trained {row.filtered} filtered {row.in_flight} in flight "
            f"{row.waiting} waiting  rollouts {row.running} running {row.verifying} verifying  {rate} steps/s  "
            f"head {row.head if row.head is not None else '-'} ready {row.ready}  stale {row.stale if row.stale is not None else '-'}  "
            f"reward {row.reward if row.reward is not None else '-'} [{row.by_domain or ''}]"
        )
