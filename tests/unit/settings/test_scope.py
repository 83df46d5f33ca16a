"""Which configuration counts: the run's, except for process keys, which come from the file or the command line."""

import ast
from pathlib import Path

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.settings.config import Config, effective, ignored, is_process_key
from orchestrator.settings.scope import PROCESS, Scope, fields_on, mark_of, scope_of

REPOSITORY = Path(__file__).resolve().parents[3]
READ_AS_IT_IS = {
    "orchestrator/settings/config.py": "the functions themselves",
    "orchestrator/settings/newest_start.py": "of other runs than the process's own",
    "orchestrator/runner/worker.py": "a worker without a file, of a bench or a check",
    "orchestrator/web/api/steering.py": "the stage, which is the run's",
    "orchestrator/cli/steering.py": "the stage, which is the run's",
    "orchestrator/audit/snapshot.py": "an audit without a file, of a test or a bench",
    "trainer/ranks/rendezvous.py": "what rank 0 goes by",
}


def of(**sections: dict[str, object]) -> Config:
    return Config.model_validate(sections)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("timeouts", "rank_silence_s", 900.0),
        ("watchdog", "no_progress_s", 7.0),
        ("rollout", "slots", 3),
        ("rollout", "verify_slots", 5),
        ("sandbox", "provider", "kubernetes"),
        ("sandbox", "kubernetes", {"namespace": "mine"}),
        ("sandbox", "container", {"engine": "docker"}),
        ("servers", "evaluation", 1),
        ("gateway", "spool_mb", 3.0),
        ("trainer", "pack_tokens", 77),
        ("policy", "directory", "/shared/policies"),
        ("web", "port", 8123),
    ],
)
def test_a_process_key_is_the_files_everywhere_and_no_start_says_that_it_is_ignored(
    section: str, key: str, value: object
) -> None:
    extra: dict[str, dict[str, object]] = {"servers": {"embedded": 2}} if key == "evaluation" else {}
    own = of(**{section: {key: value, **extra.get(section, {})}})
    stored = of(**extra).to_json()
    assert getattr(getattr(effective(stored, own), section), key) == getattr(getattr(own, section), key)
    assert ignored(stored, own) == [] and is_process_key(f"{section}.{key}")


def test_a_process_without_a_file_has_the_process_keys_of_its_command_line_and_the_runs_others() -> None:
    stored = of(
        trainer={"lr": 0.5, "pack_pairs": 33}, timeouts={"rank_silence_s": 5.0}, gateway={"spool_mb": 3.0}
    ).to_json()
    given = {
        "trainer": {"lr": 0.1, "pack_tokens": 77},
        "timeouts": of(timeouts={"rank_silence_s": 900.0}).timeouts.model_dump(),
    }
    found = effective(stored, given)
    expected = effective(
        stored, of(trainer={"pack_tokens": 77, "pack_pairs": 33}, timeouts={"rank_silence_s": 900.0})
    )
    assert (found.timeouts, found.trainer) == (expected.timeouts, expected.trainer)
    assert found.trainer.lr == 0.5, "the run's: not a process key"
    assert found.gateway.spool_mb == 3.0, "not given: as the run began"


def test_a_process_without_a_file_and_without_keys_has_what_the_run_began_with() -> None:
    began = of(timeouts={"rank_silence_s": 5.0}, trainer={"dtype": "bfloat16"})
    assert effective(began.to_json(), {}) == began


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("trainer", "routing_replay", True),
        ("trainer", "lr", 0.5),
        ("sampling", "temperature", 0.7),
        ("sandbox", "memory_mb", 64),
        ("rollout", "timeout_s", 5.0),
        ("queue", "max_staleness", 9),
        ("policy", "model", "/models/other"),
        ("run", "seed", 4),
    ],
)
def test_every_other_key_is_the_runs_and_a_new_value_is_named_as_ignored(
    section: str, key: str, value: object
) -> None:
    own = of(**{section: {key: value}})
    stored = Config().to_json()
    assert getattr(getattr(effective(stored, own), section), key) == getattr(getattr(Config(), section), key)
    assert f"{section}.{key}" in ignored(stored, own)


def test_the_default_tolerance_of_the_canary_is_that_of_the_runs_own_dtype() -> None:
    own = of(trainer={"dtype": "bfloat16"})
    assert own.gateway.canary_tolerance != Config().gateway.canary_tolerance
    assert effective(Config().to_json(), own).gateway.canary_tolerance == Config().gateway.canary_tolerance
    given = of(gateway={"canary_tolerance": 0.5})
    assert effective(Config().to_json(), given).gateway.canary_tolerance == 0.5


def test_a_session_of_the_file_that_is_shorter_than_the_runs_attempts_is_one_sentence() -> None:
    own = of(gateway={"session_ttl_s": 200.0}, rollout={"timeout_s": 100.0})
    with pytest.raises(ConfigurationError, match=r"run 'default': gateway.session_ttl_s \(200\) must be"):
        effective(Config().to_json(), own)


def test_services_are_this_processs_own_and_a_run_of_an_older_version_is_read() -> None:
    own = of(services={"database_url": "postgresql://here/x"})
    stored = Config().to_json()
    del stored["watchdog"], stored["sandbox"]["disk_mb"]
    assert effective(stored, own) == Config(services=own.services)


# Written out, so that a test notices a key whose mark is lost or moved. All other keys are the run's.
ALL = "every key of the section"
OF_THE_PROCESS: dict[str, str] = {
    "tasks": "cache_dir cache_mb",
    "services": ALL,
    "policy": "directory",
    "rollout": "slots verify_slots",
    "sandbox": "provider container images kubernetes",
    "gateway": ALL,
    "servers": ALL,
    "processes": ALL,
    "trainer": "ranks pack_tokens pack_pairs",
    "timeouts": ALL,
    "watchdog": ALL,
    "web": ALL,
    "metrics": ALL,
}
OF_THE_RUN: dict[str, str] = {
    "run": "name seed",
    "policy": "model",
    "queue": "policy batch_groups max_staleness capacity window_fraction group_size max_attempts min_batch_groups "
    "breaker_rate breaker_attempts breaker_window_s",
    "stage": "name domains difficulties max_turns max_context limits end_train_steps end_batches end_seconds then",
    "tasks": "require max_mb max_file_mb max_entries domains",
    "sampling": "temperature top_p top_k max_new_tokens repetition_tokens repetition_probability",
    "rollout": "scaffolds context lease_ttl_s timeout_s completion_s tool_timeout_s observation_characters observation_lines "
    "stall_s retry_delay_s reassign_after_s auxiliary_calls "
    "auxiliary_tokens max_resumes train_timeouts",
    "sandbox": "base_images memory_mb max_memory_mb processes cpu_s disk_mb max_disk_mb artifact_mb artifact_file_mb artifact_files "
    "egress egress_hosts egress_mb",
    "reward": "process process_cap speed_weight gamma leave_one_out advantage_std batch_scale zero_signal noise_replays noise_interval_s",
    "trainer": "lora_rank lora_alpha lora_targets parts loss ratio_min ratio_max negative_scale balance expert_bias bias_rate routing_replay "
    "aggregation anchor mask tis_max icepop_min icepop_max mis_max lr schedule warmup_steps decay_steps last_lr_share betas eps "
    "weight_decay decay_vectors clip_norm spike_norm dtype activation_checkpointing keep_logprobs keep_checkpoints permute_advantages",
}


def test_every_key_has_the_scope_that_is_written_here() -> None:
    marked: dict[Scope, dict[str, set[str]]] = {scope: {} for scope in Scope}
    for section in Config.model_fields:
        for key in type(getattr(Config(), section)).model_fields:
            name = f"{section}.{key}"
            marked[scope_of(Config, name)].setdefault(section, set()).add(key)
            assert is_process_key(name) == (scope_of(Config, name) is PROCESS)
    for scope, written in ((PROCESS, OF_THE_PROCESS), (Scope.RUN, OF_THE_RUN)):
        whole = {section for section, keys in written.items() if keys == ALL}
        other = Scope.RUN if scope is PROCESS else PROCESS
        assert whole <= set(marked[scope]) and not whole & set(marked[other])
        found = {f"{name}.{key}" for name, keys in marked[scope].items() if name not in whole for key in keys}
        here = {f"{name}.{key}" for name, keys in written.items() if keys != ALL for key in keys.split()}
        assert found == here, (
            f"write new keys of the {scope} into the table above, or mark them PROCESS: {sorted(found - here)}; "
            f"remove what is none, or no longer one: {sorted(here - found)}"
        )


def test_a_key_inside_a_table_has_the_scope_of_the_table_and_one_that_is_not_known_that_of_its_section() -> (
    None
):
    assert is_process_key("sandbox.kubernetes.ttl_s") and not is_process_key("reward.process.mine.weight")
    assert (
        is_process_key("timeouts.gone_s")
        and not is_process_key("trainer.gone")
        and not is_process_key("gone.key")
    )


def test_no_field_has_two_marks_and_no_mark_says_what_its_section_says_already() -> None:
    for section in Config.model_fields:
        for key in type(getattr(Config(), section)).model_fields:
            outer, inner = fields_on(Config, f"{section}.{key}")
            assert sum(isinstance(mark, Scope) for mark in inner.metadata) <= 1, key
            assert mark_of(inner) is None or mark_of(inner) != mark_of(outer), f"{section}.{key}"


def test_nothing_else_reads_the_configuration_in_a_runs_row() -> None:
    found = set()
    for root in ("orchestrator", "trainer"):
        for file in (REPOSITORY / root).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                match node:
                    case ast.Attribute(value=ast.Name(id="Config"), attr="from_json"):
                        found.add(str(file.relative_to(REPOSITORY)))
    assert found == set(READ_AS_IT_IS)
