"""The poison of a chaos run: every message has a name and an end of its own, and the agents leave behind what they say."""

import json
import os
import subprocess
import sys
from collections import Counter
from hashlib import md5, sha256
from pathlib import Path

import pytest

from ops.lab.chaos.harness.poison import DEEP, KINDS, MANY
from ops.lab.chaos.load import DOMAIN, event_of
from ops.lab.chaos.poison import agents
from ops.lab.chaos.poison.messages import End, Poison, forged, reports, tasks
from ops.lab.chaos.poison.mixing import MIN_AGENTS, MIN_MESSAGES, Mixing, _end
from ops.lab.chaos.prepare import HARNESS
from orchestrator.bus import subjects
from orchestrator.contracts.events import RolloutFinished, VerdictReached, encode
from orchestrator.contracts.states import FailureClass

RUN = "chaos"
RESULT = RolloutFinished(run=RUN, rollout=7, attempt=1, epoch=2, failure_class=FailureClass.COMPLETED)
VERDICT = VerdictReached(
    run=RUN, rollout=7, attempt=1, epoch=2, failure_class=FailureClass.COMPLETED, reward=1.0
)


def everything(mark: str = "1-1") -> list[Poison]:
    return [
        *tasks(RUN, mark, "chaos:000003"),
        *reports(RUN, mark),
        *forged(subjects.results_rollout(RUN), encode(RESULT), mark),
        *forged(subjects.results_verdict(RUN), encode(VERDICT), mark),
    ]


def test_every_message_has_its_own_name_and_bytes_and_goes_to_a_stream() -> None:
    made = everything()
    assert len(made) >= 3 * MIN_MESSAGES
    assert [name for name, count in Counter(poison.name for poison in made).items() if count > 1] == []
    assert {subjects.stream_of(poison.subject).name for poison in made} == {
        "TASKS",
        "STEPS",
        "RESULTS",
        "WORK",
        "BLOBS",
        "DEAD",
    }
    assert {poison.end for poison in made} == set(End)
    assert all(len(poison.body) < subjects.INLINE_LIMIT_BYTES for poison in made)


def test_another_round_has_other_bytes_wherever_a_dead_letter_is_looked_for() -> None:
    first, second = everything("1-1"), everything("2-2")
    alike = [
        a.name
        for a, b in zip(first, second, strict=True)
        if a.body == b.body and a.end in (End.DEAD, End.REFUSED)
    ]
    assert alike == []


def test_a_forged_message_is_the_real_one_but_for_one_thing() -> None:
    [again] = [
        poison
        for poison in forged(subjects.results_verdict(RUN), encode(VERDICT), "m")
        if poison.name == "verdict: a real one again"
    ]
    assert json.loads(again.body) == {**json.loads(encode(VERDICT)), "mark": "m"} and not again.headers


def poison_of(end: End, submission: str | None = None) -> tuple[Poison, str]:
    poison = Poison(name="x", subject=subjects.tasks(RUN, DOMAIN), body=b"x", end=end, submission=submission)
    return poison, md5(b"x", usedforsecurity=False).hexdigest()


def test_a_message_ends_as_it_must_or_not_at_all() -> None:
    name = sha256(b"x").hexdigest()
    dead, letter = poison_of(End.DEAD)
    assert _end(dead, set(), {}, settled=True) is None
    assert _end(dead, {letter}, {}, settled=False) == End.DEAD
    refused, _ = poison_of(End.REFUSED)
    assert _end(refused, {letter}, {}, settled=False) is None
    assert _end(refused, set(), {name: "rejected"}, settled=False) is None
    assert _end(refused, {letter}, {name: "accepted"}, settled=False) is None
    assert _end(refused, {letter}, {name: "rejected"}, settled=False) == End.REFUSED
    answered, _ = poison_of(End.ANSWERED, "chaos:1")
    assert _end(answered, set(), {name: "accepted"}, settled=False) is None
    assert _end(answered, set(), {"chaos:1": "accepted"}, settled=False) == End.ANSWERED
    counted, _ = poison_of(End.COUNTED)
    assert _end(counted, set(), {}, settled=False) is None
    assert _end(counted, set(), {}, settled=True) == End.COUNTED
    assert _end(counted, {letter}, {}, settled=True) == End.DEAD


def test_the_agents_of_a_round_are_groups_of_the_runs_own_program() -> None:
    ids = agents.submissions("8-1")
    assert len(ids) == len(KINDS) >= 2 * MIN_AGENTS
    for submission in ids:
        domain, event = event_of(submission)
        assert event == event_of(submission)[1] and domain == DOMAIN
        assert event.scaffold == str(HARNESS.resolve()) and event.submission == submission
        assert subjects.check_submission(submission) == submission
        assert agents.kind_of(submission) in agents.NAMES


def leave(kind: str, where: Path) -> subprocess.CompletedProcess[bytes]:
    """The program leaves that kind of poison in a directory."""
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import poison; poison.leave({kind!r})"],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(HARNESS)},
        capture_output=True,
        check=False,
    )


def test_the_agents_leave_behind_what_they_say(tmp_path: Path) -> None:
    for kind in ("nested", "odd_bytes", "long_names", "many", "links", "nul"):
        (tmp_path / kind).mkdir()
        done = leave(kind, tmp_path / kind)
        assert done.returncode == 0, (kind, done.stderr)
    assert (tmp_path / "nested" / "/".join(["d"] * DEEP) / "file").read_bytes() == b"x"
    assert b"\xff\xfe" in os.listdir(os.fsencode(tmp_path / "odd_bytes"))
    deep = [len(os.fsencode(path)) for path, _, _ in os.walk(tmp_path / "long_names")]
    assert max(deep) - len(os.fsencode(tmp_path)) > 3_900
    assert len(os.listdir(tmp_path / "many" / "many")) == MANY
    assert os.readlink(tmp_path / "links" / "link-1") == "/etc/passwd"
    assert b"\0" in (tmp_path / "nul" / "a.txt").read_bytes()


def test_an_agent_that_ends_itself_is_killed(tmp_path: Path) -> None:
    assert leave("gone", tmp_path).returncode == -9


@pytest.mark.parametrize("kind", ["unknown", ""])
def test_an_unknown_kind_leaves_nothing(kind: str, tmp_path: Path) -> None:
    assert leave(kind, tmp_path).returncode == 0 and os.listdir(tmp_path) == []


def test_what_is_missing_is_named() -> None:
    mixing = Mixing(nats_url="", run=RUN, run_id=1, engine=None, load=None, living=dict)  # type: ignore[arg-type]
    assert mixing.missing() == "an end of every poison agent"
    mixing._waiting["task: x"] = poison_of(End.DEAD)[0]
    assert mixing.missing() == "an end of the poison messages: task: x"
