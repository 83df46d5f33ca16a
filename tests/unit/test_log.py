"""What a log line must never show."""

import doctest

import pytest
import structlog

from orchestrator import log
from orchestrator.gateway.sessions import new_token


def test_the_example_of_the_docstring_holds() -> None:
    assert doctest.testmod(log).failed == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_tokens_keys_and_passwords_are_cut_out_of_every_line_and_of_tracebacks(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    token = new_token()
    before = structlog.get_config()
    try:
        log.configure("test", json=as_json)
        logger = log.get("test")
        logger.error("a", url=f"http://127.0.0.1/s/{token}/v1", headers={"Authorization": f"Bearer {token}"})
        try:
            raise ValueError(f"cannot connect to postgresql://penstock:{token}@127.0.0.1:5432/penstock")
        except ValueError:
            logger.exception("b")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    said = capfd.readouterr().err
    assert token not in said and said.count("***") >= 3 and "127.0.0.1:5432/penstock" in said


def test_what_is_no_secret_stays() -> None:
    line = "http://127.0.0.1:30000/generate s/ab Bearer x /s/ (16:20:01) a@b c://d"
    assert log.redact(line) == line
