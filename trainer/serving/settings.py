"""The command line of the embedded rollout server, as one frozen value. Imports nothing heavy."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.contracts.numbers import INT4, INT8, option, real, whole
from orchestrator.runtime.secret_file import read_secret


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of one server process; token limits of None are derived from the model."""

    model_path: Path
    host: str
    port: int
    weight_version: str
    max_running_requests: int
    max_total_tokens: int | None
    context_length: int | None
    seed: int
    health_timeout: float
    head_timeout: float = 30.0
    """Seconds that the head of a request may take."""
    key: str | None = None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.serving",
        description="A rollout server for CPUs that speaks a subset of SGLang's HTTP protocol.",
    )
    parser.add_argument("--model-path", required=True, type=Path, help="a Hugging Face model directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port",
        type=option(whole, least=0, most=65535),
        default=30000,
        help="0 takes a free one and logs it",
    )
    parser.add_argument("--weight-version", default="default", help="label of the weights at start")
    parser.add_argument("--max-running-requests", type=option(whole, least=1, most=INT4), default=256)
    parser.add_argument(
        "--max-total-tokens",
        type=option(whole, least=1, most=INT8),
        default=None,
        help="tokens of KV, running and cached",
    )
    parser.add_argument(
        "--context-length",
        type=option(whole, least=1, most=INT4),
        default=None,
        help="default: the model's own",
    )
    parser.add_argument(
        "--seed",
        type=option(whole, least=-INT8, most=INT8),
        default=None,
        help="seeds requests that bring no sampling_seed; default: another one at every start",
    )
    parser.add_argument(
        "--health-timeout",
        type=option(real, least=0.001, most=1e6),
        default=20.0,
        help="seconds until /health says 503",
    )
    parser.add_argument(
        "--head-timeout",
        type=option(real, least=0.001, most=1e6),
        default=30.0,
        help="seconds that the head of a request may take",
    )
    parser.add_argument(
        "--key-file", type=Path, help="a file with the bearer token that every POST must have"
    )
    return parser


def parse_arguments(argv: Sequence[str]) -> ServerSettings:
    """Parse `argv` (without the program's name). argparse itself exits with 2 on unknown options.

    Raises ValueError, one sentence, for a value that is out of range."""
    arguments = _parser().parse_args(argv)
    return ServerSettings(
        model_path=arguments.model_path,
        host=arguments.host,
        port=arguments.port,
        weight_version=arguments.weight_version,
        max_running_requests=arguments.max_running_requests,
        max_total_tokens=arguments.max_total_tokens,
        context_length=arguments.context_length,
        # A fixed one would repeat the samples of an earlier start, or of another server, in the same group.
        seed=secrets.randbits(53) if arguments.seed is None else arguments.seed,
        head_timeout=arguments.head_timeout,
        health_timeout=arguments.health_timeout,
        key=_key(arguments.key_file) if arguments.key_file else None,
    )


def _key(file: Path) -> str:
    try:
        key = read_secret(file)
    except (OSError, ValueError) as error:
        raise ValueError(f"--key-file {file} cannot be read: {error}") from None
    if not key:
        raise ValueError(f"--key-file {file} is empty")
    return key
