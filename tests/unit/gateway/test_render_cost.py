"""A call costs only its appended messages: the hundredth turn encodes as many tokens as the second."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateway.messages.turns import CanonicalCall, Turn
from orchestrator.gateway.render import TokenizerAdapter, load_renderer
from tests.unit.gateway.conftest import KINDS, model_directory
from tests.unit.gateway.driver import Driver, Message, user

TURNS = 100
SAYS = Turn(
    role="assistant",
    text="I look.",
    reasoning="Where?",
    calls=(CanonicalCall("bash", json.dumps({"command": "ls"})),),
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hundredth_turn_encodes_no_more_than_the_second(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = 0
    honest = TokenizerAdapter.encode

    def counting(self: TokenizerAdapter, text: str, **options: Any) -> list[int]:
        nonlocal encoded
        ids = honest(self, text, **options)
        encoded += len(ids)
        return ids

    monkeypatch.setattr(TokenizerAdapter, "encode", counting)
    driver = Driver(load_renderer(model_directory(kind, tmp_path / kind)))
    history: list[Message] = [user("How many oaks? " * 20)]
    costs, contexts = [], []
    for _ in range(TURNS):
        # The gateway does not render the policy's replies: only placing counts.
        encoded = 0
        turns = driver.placing(history)
        costs.append(encoded)
        contexts.append(len(turns.ids))
        stepped = driver.step(history, SAYS)
        history += [
            stepped.message,
            {"role": "tool", "tool_call_id": stepped.message["tool_calls"][0]["id"], "content": "oak oak"},
        ]
    assert costs[1] == costs[-1] < 100, "equal deltas, equal cost"
    assert contexts[-1] > 5 * contexts[1] and contexts[-1] > 20 * costs[-1], "while the context grew"
