"""The process keys that a run's row keeps for other processes."""

import json

from orchestrator.settings.config import Config, is_process_key
from orchestrator.settings.newest_start import KEPT, kept_values, newest_config

SECRET = "s3cret"


def test_every_kept_key_is_a_process_key_and_its_value_counts_for_another_run() -> None:
    assert all(map(is_process_key, KEPT))
    now = Config.model_validate(
        {
            "rollout": {"slots": 64},
            "watchdog": {"no_progress_s": 7.0},
            "servers": {"embedded": 4, "evaluation": 3},
            "sandbox": {
                "provider": "container",
                "memory_mb": 64,
                "images": {"directory": "/images"},
                "kubernetes": {"user_namespaces": True},
            },
        }
    )
    stored = Config().to_json()
    found = newest_config(stored, json.loads(json.dumps(kept_values(now))))
    assert kept_values(found) == kept_values(now) != kept_values(Config())
    assert found.sandbox.memory_mb == Config().sandbox.memory_mb, "the run's: not a process key"
    assert stored == Config().to_json()


def test_a_row_that_no_start_wrote_is_read_as_the_run_began() -> None:
    assert newest_config(Config().to_json(), None) == Config()


def test_a_key_that_this_code_does_not_know_is_left_out() -> None:
    assert newest_config(Config().to_json(), {"rollout.slots": 3, "rollout.gone": 1}).rollout.slots == 3


def test_no_secret_is_kept_and_evaluation_servers_fit_the_number_of_urls() -> None:
    login = f"http://me:{SECRET}@host"
    now = Config.model_validate(
        {
            "services": {"database_url": f"postgresql://me:{SECRET}@host/x"},
            "gateway": {"secret_file": f"/{SECRET}", "urls": [f"http://host/{SECRET}"]},
            "servers": {
                "urls": [f"http://host:{port}/{SECRET}" for port in (1, 2, 3)],
                "evaluation": 2,
                "key_file": f"/{SECRET}",
            },
            "sandbox": {
                "images": {"build_env": {"PIP_INDEX_URL": login}},
                "container": {"run_options": [f"--env=TOKEN={SECRET}"]},
            },
        }
    )
    kept = kept_values(now)
    assert SECRET not in json.dumps(kept)
    assert newest_config(Config().to_json(), kept).servers.evaluation == 2
