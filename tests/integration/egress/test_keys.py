"""The keys of a task and of a run that give a network: each changes what its programs reach, in real sandboxes."""

import re

import pytest
from structlog.testing import capture_logs

from orchestrator.contracts.network import Grant
from orchestrator.probing import Left, ProbeRun
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.egress.rig import World, placed

pytestmark = [pytest.mark.anyio, pytest.mark.tier("tasks")]

GET = "python3 -c \"import urllib.request as u; print(u.urlopen('http://a.example.org/', timeout=20).read().decode())\""
PUBLIC = SandboxSection(egress=Grant.PUBLIC)
PODS = SandboxSection(egress=Grant.PUBLIC, provider="kubernetes")
LISTS = SandboxSection(egress=Grant.ALLOW_LIST, egress_hosts=("*.example.org",))


def a_task(toml: str) -> Task:
    return Task.from_files(
        {
            "task.toml": toml.encode(),
            "instruction.md": b"Fetch a page.",
            "solution/solve.sh": f"{GET} > /app/page || echo none > /app/page\n".encode(),
            "tests/test.sh": f"mkdir -p /logs/verifier; {GET} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n".encode(),
        }
    )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return placed(monkeypatch)


async def ran(world: World, toml: str, section: SandboxSection) -> tuple[bool, float | None]:
    """(whether the agent fetched the page, the reward of tests that fetch it)."""
    task = a_task(toml)
    check_admissible(task, section)
    async with world.serving():
        run = ProbeRun(task, BubblewrapProvider(), section=section, agent_s=30.0)
        left = await run.solved()
        assert left is not None
        [page] = [file for file in left.artifacts if file.path == "page"]
        assert page.body is not None
        grade = await run.judged(Left(answer="", artifacts=()))
    return "cGFnZSBvZ" in str(page.body), grade.reward  # base64 of "page of"


@pytest.mark.parametrize(
    ("toml", "section", "agent", "tests"),
    [
        ("", PUBLIC, False, 0.0),
        ('[environment]\nnetwork_mode = "public"', PUBLIC, True, 1.0),
        ("[environment]\nallow_internet = true", PUBLIC, True, 1.0),
        ('[environment]\nnetwork_mode = "no-network"\nallow_internet = false', PUBLIC, False, 0.0),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example.org"]', LISTS, True, 1.0),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["b.example.org"]', LISTS, False, 0.0),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.example.org"]', LISTS, True, 0.0),
        ('[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example.org"]', LISTS, False, 1.0),
        (
            '[environment]\nnetwork_mode = "public"\n[agent]\nnetwork_mode = "no-network"\n[verifier.environment]\nworkdir = "/app"',
            PUBLIC,
            False,
            0.0,
        ),
        (
            '[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.example.org"]',
            LISTS,
            False,
            1.0,
        ),
    ],
)
async def test_agent_and_tests_reach_what_their_keys_say_and_the_run_grants(
    world: World, toml: str, section: SandboxSection, agent: bool, tests: float
) -> None:
    assert await ran(world, toml, section) == (agent, tests)


async def test_a_sandbox_that_has_used_up_its_bytes_reaches_nothing_more(world: World) -> None:
    body = b"x" * (1 << 20)
    world.answers[b"GET / HTTP/1.1"] = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with capture_logs() as log:
        section = PUBLIC.model_copy(update={"egress_mb": 1})
        assert await ran(world, '[agent]\nnetwork_mode = "public"', section) == (False, 0.0)
    [closed] = [line for line in log if line["event"] == "egress.closed"]
    assert "has used up its 1 MB (sandbox.egress_mb)" in closed["reason"]


@pytest.mark.parametrize(
    ("toml", "section", "sentence"),
    [
        ('[agent]\nnetwork_mode = "public"', SandboxSection(), "network_mode = 'public' is not honoured: sandboxes of this run have no network"),
        ('[verifier]\nnetwork_mode = "public"', LISTS, "[verifier].network_mode = 'public' is not honoured: this run grants allow-lists alone"),
        ('[environment]\nallow_internet = true', LISTS, "[environment].allow_internet = True is not honoured: this run grants allow-lists alone"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["evil.org"]', LISTS, "'evil.org' is not among the hosts that this run grants"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.org"]', LISTS, "'*.org' is not among the hosts that this run grants"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["example.org"]', LISTS, "'example.org' is not among the hosts"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["https://a.org/"]', PUBLIC, "[agent].allowed_hosts must be a list of names of hosts"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]', PUBLIC, "[agent].allowed_hosts must be a list of names of hosts"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.*.org"]', PUBLIC, "[agent].allowed_hosts must be a list of names of hosts"),
        ('[agent]\nnetwork_mode = "bridge"', PUBLIC, '[agent].network_mode must be "no-network", "allowlist" or "public", got \'bridge\''),
        ('[agent]\nnetwork_mode = "public"\nallowed_hosts = ["a.org"]', PUBLIC, 'it needs network_mode = "allowlist" next to it'),
        ('[environment]\nallow_internet = "yes"', PUBLIC, "[environment].allow_internet must be true or false, got 'yes'"),
        ('[agent]\nnetwork_mode = "public"', PODS, "sandboxes of the provider kubernetes do not reach the run's egress proxy"),
    ],
)  # fmt: skip
async def test_what_the_run_does_not_grant_is_refused_in_one_sentence(
    toml: str, section: SandboxSection, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(a_task(toml), section)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"egress": "allow_list", "egress_hosts": ["https://a.org"]}, "egress_hosts: "),
        ({"egress_hosts": ["a.org"]}, 'egress is "none"'),
        ({"egress": "public", "egress_hosts": ["a.org"]}, 'write egress = "allow_list"'),
        ({"egress": "all"}, "egress"),
        ({"egress_mb": 0}, "egress_mb"),
    ],
)
async def test_a_grant_that_would_not_hold_is_refused(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        SandboxSection.model_validate(keys)
