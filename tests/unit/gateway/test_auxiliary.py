"""Which calls are not the policy's work, by a scaffold's rules."""

import pytest

from orchestrator.gateway.completions.record import auxiliary
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.messages.turns import Turn

RULES = ("*-small", "text:*title generator*")


@pytest.mark.parametrize(
    ("model", "first", "expected"),
    [
        ("policy", "You work on code.", False),
        ("policy-small", "You work on code.", True),
        ("policy", "You are a title generator. Be short.\nOne line.", True),
        ("text:policy", "You work on code.", False),
    ],
)
def test_a_call_is_auxiliary_by_its_model_or_by_its_first_message(
    model: str, first: str, expected: bool
) -> None:
    turns = tuple(
        Turn.from_plain({"role": role, "content": text})
        for role, text in (("system", first), ("user", "title generator?"))
    )
    request = CompletionRequest(turns=turns, tools=(), digest="", model=model)
    assert auxiliary(request, RULES) is expected
    assert not auxiliary(request, ())


def test_a_call_without_messages_is_the_policys() -> None:
    assert not auxiliary(CompletionRequest(turns=(), tools=(), digest="", model="policy"), RULES)
