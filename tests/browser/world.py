"""The run that the browser visits: three batches of a policy of random weights, a hostile recording, a group without signal, dead letters, and
a run that still lives."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.publish import publish_tasks
from orchestrator.tasks.harbor import Task
from tests.e2e.observer import PATIENCE_S, Observer, observing
from tests.e2e.stack_rig import Stack, place, until

AGENT = Path(__file__).with_name("agent.py")
BATCHES = 3
CONFIG = """\
[run]
name = "visited"

[policy]
model = "{model}"

[queue]
batch_groups = 2
group_size = 2
max_staleness = 2
capacity = 8
window_fraction = 0.5

[stage]
max_turns = 4
max_context = 2048

[sampling]
max_new_tokens = 12

[sandbox]
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64

[rollout]
slots = 4
verify_slots = 2
scaffolds = {{ "{agent}:Branching" = 1.0, "{agent}:Waiting" = 0.0, "{agent}:Broken" = 0.0, shell = 0.0 }}
lease_ttl_s = 5.0
retry_delay_s = 0.1
timeout_s = 120.0
completion_s = 120.0
tool_timeout_s = 60.0
"""
STATE = "select state = any(:states) from groups where run_id = :run and group_id = :group"
LONGEST = """\
select r.rollout_id, s.idx from rollouts r join groups g using (run_id, group_id) join steps s using (run_id, rollout_id, attempt)
where r.run_id = :run and g.state = 'trained' order by s.full_len - s.state_len desc limit 1"""
# Nothing runs, every finished group is in the open batch, and that waits for more: no number of the queue changes by itself.
AT_REST = """
select not exists (select from rollouts where run_id = :run and state in ('queued', 'running', 'reported', 'finished', 'verifying'))
   and not exists (select from groups where run_id = :run and seq is not null and state in ('dispatched', 'ready'))
   and (select array_agg(state) = '{open}' from batches where run_id = :run and state in ('open', 'closed'))"""
LUCK = "printf '0.%05d' $RANDOM"

# Texts that could run, reach out, format, colour, move or reorder, if they were ever read as anything but text.
SCRIPT = '<script>document.title="owned"</script>'
IMAGE = "<img src=http://penstock.invalid/x.png onerror=\"document.title='owned'\">"
MARKDOWN = "**bold** [click](javascript:alert(1)) ![p](http://penstock.invalid/y.png)"
ANSI = "\x1b[31mred\x1b[0m\x1b]0;owned\x07"
BIDI = "user\u202etxt.exe\u2066\u200b"
LONG = "endless" * 60
HOSTILE = "\n".join(
    (SCRIPT, IMAGE, "</pre></main><style>*{display:none}</style>", MARKDOWN, ANSI, BIDI, LONG)
)
HOSTILE_SEEN = ("\u241b[31mred\u241b[0m\u241b]0;owned\u2407", "user⟨U+202E⟩txt.exe⟨U+2066⟩⟨U+200B⟩")
HOSTILE_NAME = f"{SCRIPT} \u202eeman \x1b[2J {'wide' * 30}"


def a_task(instruction: str, *, reward: str = LUCK, name: str | None = None, **files: bytes) -> Task:
    """A task whose reward is the output of `reward`."""
    test = f"mkdir -p /logs/verifier; echo the verifier was here; {reward} > /logs/verifier/reward.txt\n"
    named = f"name = {json.dumps(name)}\n" if name else ""
    return Task.from_files(
        {
            "task.toml": f"[metadata]\n{named}".encode(),
            "instruction.md": instruction.encode(),
            "tests/test.sh": test.encode(),
            **{path.replace("__", "/").replace("_json", ".json"): body for path, body in files.items()},
        }
    )


def hostile() -> Task:
    """A task whose name, instruction, policy, tools and files are hostile."""
    write = f"cat > 'a<b>.html' <<'EOF'\n{SCRIPT}\nEOF\necho \"<i>$RANDOM</i>\" >> 'a<b>.html'; printf '\\033[31m<b>seen</b>\\n'"
    script = [
        {
            "reasoning": f"I think {SCRIPT}",
            "content": "",
            "tool_calls": [{"name": "bash", "arguments": {"command": write}}],
        },
        {"reasoning": BIDI, "content": f"{IMAGE} {ANSI}", "tool_calls": []},
    ]
    return a_task(
        HOSTILE,
        name=HOSTILE_NAME,
        reward="echo '<u>0</u>' >&2; echo 0.5",
        record__script_json=json.dumps(script).encode(),
    )


@dataclass(slots=True, kw_only=True)
class World:
    """A stack, a client of its run, and where things are in it."""

    stack: Stack
    seen: Observer
    published: int = 0
    ids: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The dashboard's URL, with its token."""
        return self.stack.home.web_url_file.read_text().strip()

    @property
    def address(self) -> str:
        """The dashboard's URL, without a slash at its end."""
        return self.url.partition("/?")[0]

    async def submit(
        self, *tasks: Task, scaffold: str = "Branching", domain: str = "general", **more: Any
    ) -> list[int]:
        """Publish, wait until accepted, and return the groups."""
        events = []
        for task in tasks:
            self.published += 1
            name = f"{scaffold.lower()}:{self.published:04d}"
            where = scaffold if scaffold == "shell" else f"{AGENT}:{scaffold}"
            events.append(
                (domain, TaskSubmitted(task=task.to_message(), submission=name, scaffold=where, **more))
            )
        answers = await publish_tasks(self.seen.bus, self.seen.run, events, timeout_s=PATIENCE_S)
        assert {status for status, _ in answers.values()} == {"accepted"}, answers
        names = [event.submission for _, event in events]
        found = await self.seen.rows(
            "select group_id from groups where run_id = :run and submission = any(:names) order by 1",
            names=names,
        )
        return [row.group_id for row in found]

    async def value(self, statement: str, **parameters: Any) -> Any:
        return await self.seen.value(statement, **parameters)

    async def until(self, statement: str, what: str, **parameters: Any) -> None:
        """Wait until the only value of `statement` is true."""

        async def holds() -> bool:
            return bool(await self.value(statement, **parameters))

        await until(holds, what, PATIENCE_S)

    async def until_at_rest(self) -> None:
        """Wait until no number of the queue changes by itself."""
        await self.until(AT_REST, "the queue is at rest")

    async def until_group(self, group_id: int, *states: str) -> None:
        what = f"group {group_id} is {' or '.join(states)}"
        await self.until(STATE, what, group=group_id, states=list(states))

    async def a_dead_message(self) -> int:
        """A message that cannot be used; returns the number of its letter."""
        known = await self.value("select coalesce(max(dead_letter_id), 0) from dead_letters")
        subject = subjects.tasks(self.seen.run, "general")
        await self.seen.bus.publish(
            Outgoing(
                subject=subject,
                msg_id=f"junk:{known}",
                schema="TaskSubmitted/1",
                body=b"<script>\xff\x1b[31m",
            )
        )
        await self.until(
            "select max(dead_letter_id) > :known from dead_letters", "the message is dead", known=known
        )
        return int(await self.value("select max(dead_letter_id) from dead_letters"))

    async def longest_step(self) -> tuple[int, int]:
        """The rollout and the index of the trained step that sampled most tokens: a policy of random weights may end any after the first."""
        (row,) = await self.seen.rows(LONGEST)
        return row.rollout_id, row.idx

    async def live(self) -> None:
        """Produce every state that a page may show."""
        (self.ids["dead"],) = await self.submit(a_task("Whatever."), scaffold="Broken")
        await self.submit(*[a_task(f"Say {n}.") for n in range(BATCHES)])
        await self.submit(*[a_task(f"Code {n}.") for n in range(BATCHES)], domain="coding")
        (self.ids["dull"],) = await self.submit(a_task("Nothing to learn.", reward="echo 1"))
        (self.ids["hostile"],) = await self.submit(
            hostile(), scaffold="shell", purpose="record", group_size=2, label="hostile"
        )
        self.ids["letter"] = await self.a_dead_message()
        await self.seen.until_batches(BATCHES)
        await self.until_group(self.ids["dead"], "dead")
        await self.until_group(self.ids["dull"], "filtered")
        await self.until_group(self.ids["hostile"], "scored")
        await self.seen.until_served(BATCHES)
        of = "select min(rollout_id) from rollouts where run_id = :run and group_id = :group"
        self.ids["hostile_rollout"] = await self.value(of, group=self.ids["hostile"])
        self.ids["group"] = await self.value(
            "select min(group_id) from groups where run_id = :run and state = 'trained'"
        )
        self.ids["rollout"] = await self.value(of, group=self.ids["group"])


@asynccontextmanager
async def living(model: Path) -> AsyncIterator[World]:
    """The world, until the context ends; its files are gone then."""
    with place() as directory:
        stack = Stack(directory)
        (directory / "penstock.toml").write_text(CONFIG.format(model=model, agent=AGENT))
        try:
            await stack.up()
            async with observing(stack.home) as seen:
                world = World(stack=stack, seen=seen)
                await world.live()
                yield world
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(stack.destroy)
