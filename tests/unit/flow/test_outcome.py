"""Exceptions into failure classes."""

import pytest
from scaffolds.base import PolicyFault

from orchestrator.contracts.errors import AgentTimeout, InfraFailure, PolicyFailure, ServiceError
from orchestrator.contracts.states import FailureClass
from orchestrator.flow.outcome import Outcome, captured
from orchestrator.gateway_client import BudgetExhausted, GatewayRefused
from sandboxes.base import SandboxError

pytestmark = pytest.mark.anyio

POLICY, INFRA = FailureClass.POLICY_FAILURE, FailureClass.INFRA_FAILURE


async def outcome(error: Exception) -> Outcome:
    async def work() -> Outcome:
        raise error

    return await captured(work)


@pytest.mark.parametrize(
    ("error", "failure", "reason"),
    [
        (PolicyFault("turns"), POLICY, "turns"),
        (PolicyFailure("ill-formed"), POLICY, "ill-formed"),
        (BudgetExhausted("context", "the budget is used up"), POLICY, "context"),
        (AgentTimeout("wall clock"), FailureClass.TIMEOUT, "wall clock"),
        (InfraFailure("gateway"), INFRA, "gateway"),
        (SandboxError("no disk"), INFRA, "sandbox: no disk"),
        (GatewayRefused(400, "x", "malformed"), INFRA, "scaffold: GatewayRefused"),
        (KeyError("x"), INFRA, "scaffold: KeyError"),
        (TimeoutError(), INFRA, "scaffold: TimeoutError"),
        (ExceptionGroup("two", [PolicyFault("turns"), SandboxError("no disk")]), INFRA, "sandbox: no disk"),
        (ExceptionGroup("one", [ExceptionGroup("in one", [PolicyFault("turns")])]), POLICY, "turns"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_every_exception_has_a_failure_class(
    error: Exception, failure: FailureClass, reason: str
) -> None:
    found = await outcome(error)
    assert (found.failure, found.reason, found.answer) == (failure, reason, None)
    assert found.scaffold_error == reason.startswith("scaffold: ")


async def test_what_a_person_must_mend_is_not_data() -> None:
    with pytest.raises(ServiceError):
        await outcome(ServiceError("the secret is wrong"))


async def test_texts_fit_a_message_and_postgres() -> None:
    found = Outcome(FailureClass.COMPLETED, answer="a\x00b\ud800", log="x" * 5000, reason="y" * 5000)
    assert found.answer == "a\ufffdb?" and len(found.log) == 4096 and len(found.reason) == 1000
