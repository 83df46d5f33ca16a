"""The filters that a person may set for an export, and those that are refused with a sentence."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.api.filters import attempt_filters as api_filters
from orchestrator.cli import log_lines
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.queries.attempt_filters import AttemptFilters, read_since

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "ago"),
    [("90m", timedelta(minutes=90)), ("2d", timedelta(days=2)), ("30 s", timedelta(seconds=30))],
)
def test_an_age_is_counted_back_from_now(given: str, ago: timedelta) -> None:
    assert read_since(given, NOW) == NOW - ago


def test_a_time_may_have_a_zone_of_its_own() -> None:
    assert read_since("2026-01-31T12:00+02:00", NOW) == NOW - timedelta(hours=2)
    assert read_since(None, NOW) is None


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine nine hours ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_a_time_without_a_zone_is_utc_as_in_logs_on_every_machine() -> None:
    for given in ("2026-01-31T12:00", "2026-01-31 12:00:00"):
        assert read_since(given, NOW) == NOW and log_lines.since(given, 0.0) == NOW.timestamp()


@pytest.mark.usefixtures("far_east")
def test_a_datetime_without_a_zone_is_in_the_zone_of_the_machine() -> None:
    found = api_filters(since=datetime(2026, 1, 31, 21))
    assert read_since(found.since, NOW) == NOW
    assert api_filters(since=datetime.min).since == "0001-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"purpose": "fun"}, "purpose 'fun' is unknown; known: train, eval, record"),
        ({"state": "happy"}, "state 'happy' is not a state of a group or a rollout: accepted"),
        ({"versions": "a..b"}, "versions 'a..b' cannot be read: write 7, 3..9"),
        ({"versions": ".."}, "versions '..' cannot be read"),
        ({"versions": "9..3"}, "versions '9..3' ends before it begins: write 3..9"),
        ({"versions": "\u0663..9"}, "versions .* cannot be read: write 7, 3..9"),
        ({"since": "yesterday"}, "since 'yesterday' cannot be read: write a time"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match="^" + sentence.replace("?", r"\?")):
        AttemptFilters(**given)  # type: ignore[arg-type]


def test_the_plain_form_holds_only_the_filters_that_are_set() -> None:
    assert AttemptFilters().plain() == {}
    assert AttemptFilters(rollouts=()).plain() == {"rollouts": []}
    assert AttemptFilters(groups=(4,), label="", every_attempt=True).plain() == {
        "groups": [4],
        "label": "",
        "every_attempt": True,
    }


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"versions": "99999999999999"},
            "versions must be a whole number from 0 to 2147483647",
        ),
        ({"versions": f"1..{'9' * 5000}"}, "versions must be a whole number"),
        ({"since": "99999999999d"}, "since '99999999999d' cannot be read"),
        ({"since": "999999999d"}, "since '999999999d' cannot be read"),
        ({"label": "a\0b"}, "label 'a\\x00b' holds characters that PostgreSQL cannot store"),
        ({"task": "\udcff"}, "task '\\udcff' holds characters that PostgreSQL cannot store"),
    ],
)
def test_a_value_that_no_column_holds_is_refused_before_the_query(
    given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        AttemptFilters(**given)  # type: ignore[arg-type]
