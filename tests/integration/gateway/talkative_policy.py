"""A policy that a test can rely on: its reply to any prompt is three words and a call of bash.

It is a real policy, trained for some seconds. Sampling draws the words, so that no two turns of a history are alike (`top_p` below 1
excludes unlikely tokens).
"""

from pathlib import Path
from random import Random
from typing import Any

from scaffolds.context.periodic_summary import HEADING, REQUEST

from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render import load_renderer
from trainer.policy.init import make_policy
from trainer.sft.corpus import Demonstrations, tokenizer_digest
from trainer.sft.train import SftSettings, train

TASK = "go on"
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 0.7, "max_new_tokens": 48}
WORDS = ("oak", "elm", "moss", "wolf", "crow", "iron", "wool", "dove", "reed", "cart")


def _turn(random: Random) -> tuple[str, Turn]:
    """(the words, a turn with them)."""
    words = " ".join(random.choice(WORDS) for _ in range(3))
    call = {"name": "bash", "arguments": {"command": "echo ok"}}
    return words, Turn.from_plain({"role": "assistant", "content": words, "tool_calls": [call]})


def _conversation(random: Random) -> list[Turn]:
    turns = [Turn(role="user", text=TASK)]
    if random.random() < 0.3:
        turns.append(Turn(role="user", text=HEADING + _turn(random)[0]))
    for _ in range(random.randint(1, 4)):
        turns += [_turn(random)[1], Turn(role="tool", text="ok")]
    if random.random() < 0.3:
        turns.append(Turn(role="user", text=REQUEST))
    return [*turns, _turn(random)[1]]


def make_talkative_policy(directory: Path) -> Path:
    """Train it; returns its model directory."""
    base = make_policy(directory / "random", seed=0)
    renderer, random = load_renderer(base), Random(0)
    samples = []
    for _ in range(240):
        ids: list[int] = []
        reply: list[int] = []
        action: list[bool] = []
        run: list[Turn] = []
        for turn in _conversation(random):
            if turn.role != "assistant":
                run.append(turn)
                continue
            state = (
                renderer.between(reply, run, asking=True) if ids else renderer.opening(run, [], asking=True)
            )
            reply = renderer.action(turn)
            ids += [*state, *reply]
            action += [*[False] * len(state), *[True] * len(reply)]
            run = []
        samples.append((ids, action))
    corpus = directory / "talkative.safetensors"
    Demonstrations.of(samples, tokenizer=tokenizer_digest(base)).save(corpus)
    trained = directory / "talkative"
    train(corpus, base, trained, seed=0, settings=SftSettings(steps=60, rows=4), progress=lambda _: None)
    return trained
