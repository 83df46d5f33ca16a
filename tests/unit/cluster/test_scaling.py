"""The number of runners: by waiting work and held work, with a login of their own role, reduced by one at a time."""

import pytest

from orchestrator.deploy.cluster.policy import broken
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.validate import unfit
from tests.unit.cluster.rendered import objects, parsed, topology
from tests.unit.cluster.test_kubernetes import Objects, get


def scaled(found: Objects) -> Objects:
    return [each for each in found if each["kind"] == "ScaledObject"]


def test_a_pool_is_scaled_by_the_work_that_it_holds_too_a_slot_each() -> None:
    (of,) = scaled(objects("nodes4"))
    (trigger,) = of["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert trigger["type"] == "postgresql" and trigger["metadata"]["targetQueryValue"] == "64"
    assert "'queued'" in query and "'running'" in query and "'%:runner'" in query


def test_the_scaler_logs_in_by_a_secret_that_no_object_holds() -> None:
    found = objects("nodes4")
    (of,) = scaled(found)
    login = get(found, "TriggerAuthentication", of["spec"]["triggers"][0]["authenticationRef"]["name"])
    assert login["spec"]["secretTargetRef"] == [
        {"parameter": "connection", "name": "nodes4-runner-login", "key": "uri"}
    ]


def test_two_pools_hold_work_of_their_own_and_are_counted_apart() -> None:
    named = {
        each["metadata"]["name"]: each["spec"]["triggers"][0]["metadata"]
        for each in scaled(objects("nodes64"))
    }
    assert set(named) == {"nodes64-runner-short", "nodes64-verifier"}
    assert "'%:runner-short'" in named["nodes64-runner-short"]["query"]
    assert "'verifying'" in named["nodes64-verifier"]["query"]
    assert len({each["dbName"] for each in named.values()}) == 2


def test_runners_go_one_by_one_after_a_while_of_less_work_and_each_has_time_to_give_back_what_it_holds() -> (
    None
):
    found = objects("nodes4")
    (of,) = scaled(found)
    down = of["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert [each["value"] for each in down["policies"]] == [1] and down["stabilizationWindowSeconds"] >= 600
    runner = get(found, "Deployment", of["spec"]["scaleTargetRef"]["name"])["spec"]["template"]["spec"]
    assert runner["terminationGracePeriodSeconds"] >= 120


@pytest.mark.parametrize("external", ["nats://one:4222,nats://two:4222", ""])
def test_keda_reaches_postgres_and_not_nats(external: str) -> None:
    of = topology("nodes4")
    found = parsed(
        dict(
            render(
                of.model_copy(update={"nats": of.nats.model_copy(update={"external": external})}),
                "kubernetes",
            )
        )
    )
    ways = [
        each["metadata"]["name"]
        for each in found
        if each["kind"] == "NetworkPolicy" and "keda" in str(each["spec"])
    ]
    assert ways == ["nodes4-postgres"]
    assert unfit(found) == [] and broken(found) == []
