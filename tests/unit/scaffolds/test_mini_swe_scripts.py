"""How a policy ends under mini-swe-agent: one spelling in the scaffold, the demonstrations and the tokenizer."""

import json
import subprocess
from typing import Any

import pytest
from scaffolds.find import find
from scaffolds.mini_swe import SUBMIT, MiniSweAgent, submission

from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.sessions.script import scripted_turn
from orchestrator.tasks.suite import Trajectory
from orchestrator.tasks.suite import Turn as Move
from orchestrator.tasks.suite.record import SCRIPTS
from trainer.policy import tokenizer

MOVES = (Move("count lines", "wc -l < oak.txt"), Move("first line", "head -n 1 oak.txt"))


def replies(answer: str | None, seen: str) -> list[Turn]:
    """The replies of a scripted session; `seen` is the last observation."""
    history = (
        Turn(role="user", text="task"),
        Turn(role="assistant", text="", reasoning=None, calls=()),
        Turn(role="tool", text=seen),
    )
    return [scripted_turn(reply, history) for reply in SCRIPTS["mini-swe-agent"](Trajectory(MOVES, answer))]


def commands(turns: list[Turn]) -> list[Any]:
    return [call.mapping()["command"] for turn in turns for call in turn.calls]


def test_a_script_runs_the_trajectorys_commands_and_then_submits_its_answer() -> None:
    turns = replies("done", "4")
    assert [turn.reasoning for turn in turns] == ["count lines", "first line", None]
    assert commands(turns) == [*(move.command for move in MOVES), f"{SUBMIT}'done'"]
    assert all(not turn.text for turn in turns)


def test_without_an_answer_the_last_observation_is_submitted() -> None:
    assert commands(replies(None, "elm fig\nplum"))[-1] == submission("elm fig\nplum")


@pytest.mark.parametrize("answer", ["7", "elm fig", "a\nb", "f(x): $((1)) \\ `ls` *"])
def test_what_is_submitted_is_what_the_marker_is_followed_by(answer: str) -> None:
    printed = subprocess.run(
        ["bash", "-c", submission(answer)], capture_output=True, text=True, check=True
    ).stdout
    assert printed == f"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n{answer}\n"


def test_the_marker_is_one_token_in_prompt_and_command() -> None:
    assert tokenizer.SUBMIT == SUBMIT
    encoded = tokenizer.build_tokenizer()
    marker = encoded.token_to_id(SUBMIT)
    assert marker is not None
    in_json = json.dumps(submission("7"))
    for text in (in_json, MiniSweAgent.config.read_text(encoding="utf-8")):
        assert encoded.encode(text).ids.count(marker) == 1


def test_it_is_found_by_its_name() -> None:
    manifest = find("mini-swe-agent").manifest
    assert (manifest.kind, manifest.wire, manifest.version) == ("black", "chat", "2.4.6")
