"""The trainer's command line gives the process keys that its own configuration has."""

from orchestrator.settings.config import Config, effective, is_process_key
from orchestrator.settings.timeouts import to_argument
from trainer.__main__ import options, process_keys

REQUIRED = ["--run", "first", "--policies", "policies", "--subject", "subject"]


def test_the_keys_of_the_command_line_are_the_trainers_as_those_of_a_file_would_be() -> None:
    own = Config.model_validate({"trainer": {"pack_tokens": 77}, "timeouts": {"rank_silence_s": 900.0}})
    stored = Config.model_validate({"trainer": {"lr": 0.5}, "timeouts": {"rank_silence_s": 5.0}}).to_json()
    given = process_keys(
        options().parse_args([*REQUIRED, "--pack-tokens", "77", f"--timeouts={to_argument(own.timeouts)}"])
    )
    found, expected = effective(stored, given), effective(stored, own)
    assert (found.timeouts, found.trainer) == (expected.timeouts, expected.trainer)
    assert all(is_process_key(f"{section}.{key}") for section, keys in given.items() for key in keys)


def test_without_options_everything_is_as_the_run_began() -> None:
    began = Config.model_validate({"timeouts": {"rank_silence_s": 5.0}, "trainer": {"pack_pairs": 7}})
    given = process_keys(options().parse_args(REQUIRED))
    assert not any(given.values())
    assert effective(began.to_json(), given) == began
