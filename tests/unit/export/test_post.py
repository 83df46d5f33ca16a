"""The URL of a collector is refused at the start if no request could be sent to it."""

import pytest

from orchestrator.contracts.errors import ArgumentError
from orchestrator.export.post import check_endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://:4318",
        "http://[::1",
        "http://collector:99999",
        "http://collector:x",
        "http://collector:0",
        "http://a..b",
        f"http://{'a' * 70}.b",
        "http://h é/",
        "http://h/ü",
        "http://h/a b",
        "http://h\0",
        "http://h\n",
        "http://h/v1/traces#part",
    ],
)
def test_an_endpoint_that_no_request_can_reach_is_refused_by_its_option(endpoint: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"^endpoint .* is not a URL of a collector: write http://host:4318$"
    ):
        check_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", ["http://me:sesame@collector:4318", "https://me:sesame@[::1"])
def test_a_login_in_an_endpoint_is_refused_and_not_repeated(endpoint: str) -> None:
    with pytest.raises(ArgumentError, match=r"^endpoint has a login before its @") as refused:
        check_endpoint(endpoint)
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:4318",
        "HTTP://Collector/",
        "https://[::1]:4318/v1/traces?token=x",
        "http://otel_collector",
        "https://a.example/@b",
    ],
)
def test_an_endpoint_of_a_collector_is_taken(endpoint: str) -> None:
    check_endpoint(endpoint)
