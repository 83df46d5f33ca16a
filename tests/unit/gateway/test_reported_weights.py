"""A rollout server's statements about its weights, compared with those that it was given."""

from dataclasses import replace

from orchestrator.contracts.marks import Finish
from orchestrator.gateway.servers.client import FinishReason, Generation, ModelInfo, Timings, WeightSpan
from orchestrator.gateway.servers.weights import KEPT, KnownDigests, ReportedWeights

GIVEN = ReportedWeights("3", "/runs/version-000003", "aa")


def test_a_server_that_tells_a_digest_is_judged_by_it_and_not_by_the_directory() -> None:
    assert replace(GIVEN, directory="/tmp/elsewhere").instead_of(GIVEN) is None
    assert replace(GIVEN, digest="bb").instead_of(GIVEN) == (
        "serves other weights as version '3': expected digest 'aa', found 'bb'"
    )
    fault = replace(GIVEN, digest=None).instead_of(GIVEN)
    assert fault is not None and fault.endswith("expected digest 'aa', found none"), (
        "another program took its port"
    )


def test_a_server_without_digests_is_judged_by_version_and_directory() -> None:
    given = replace(GIVEN, digest=None)
    assert given.instead_of(given) is None
    fault = replace(given, directory="/tmp/elsewhere").instead_of(given)
    assert fault == (
        "serves other weights as version '3': expected directory '/runs/version-000003', found '/tmp/elsewhere'"
    )
    assert ReportedWeights("3").instead_of(ReportedWeights("3")) is None
    assert ReportedWeights("4").instead_of(given) == "serves the weights '4' instead of '3'"


def test_an_empty_text_tells_nothing() -> None:
    reported = ReportedWeights.of(ModelInfo(weight_version="3", model_path="", weights_digest=""))
    assert reported == ReportedWeights("3", None, None)
    assert ReportedWeights.of(ModelInfo()) == ReportedWeights(None)


def reply(*spans: tuple[str, str | None]) -> Generation:
    """A reply with one token for each (version, digest)."""
    return Generation(
        rid="r",
        output_ids=(7,) * len(spans),
        logprobs=(-0.5,) * len(spans),
        spans=tuple(
            WeightSpan(version=version, start=at, end=at + 1, digest=digest)
            for at, (version, digest) in enumerate(spans)
        ),
        finish=FinishReason(Finish.STOP),
        weight_version="3",
        weights_digest="aa",
        prompt_tokens=3,
        completion_tokens=len(spans),
        cached_tokens=0,
        retractions=0,
        timings=Timings(0.0, None),
        text="",
    )


def known() -> KnownDigests:
    digests = KnownDigests()
    digests.know(3, "aa")
    digests.know(4, "bb")
    return digests


def test_a_reply_must_come_from_the_weights_of_the_versions_that_it_names() -> None:
    assert known().foreign(reply(("3", "aa"), ("4", "bb"))) is None
    assert known().foreign(reply()) is None
    for wrong in (("3", "bb"), ("4", "cc"), ("3", None), ("9", "cc"), ("default", "cc")):
        fault = known().foreign(reply(("3", "aa"), wrong))
        assert fault is not None and f"as version '{wrong[0]}'" in fault, wrong


def test_a_version_that_the_server_was_not_given_is_judged_elsewhere_if_its_weights_are_known() -> None:
    assert known().foreign(reply(("9", "aa"))) is None


def test_without_digests_no_reply_is_judged_and_old_versions_are_forgotten() -> None:
    digests = known()
    digests.know(5, None)
    assert digests.foreign(reply(("3", "cc"))) is None
    for version in range(KEPT + 1):
        digests.know(version, f"d{version}")
    assert digests.foreign(reply((str(KEPT), f"d{KEPT}"))) is None
    assert digests.foreign(reply(("0", "d0"))) is not None
