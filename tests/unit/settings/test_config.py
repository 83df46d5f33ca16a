"""Configuration errors are one sentence that names the key, its fault, and the known keys."""

import codecs
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ops.lab.chaos import prepare as chaos_prepare
from ops.lab.demo import prepare as demo_prepare
from orchestrator.contracts.choices import Aggregation
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.home import write_template
from orchestrator.settings.config import PATHS, Config, differences, load
from orchestrator.settings.keys import keys as all_keys
from orchestrator.settings.sampling import checked
from orchestrator.settings.url_files import with_absolute_files
from tests.unit.settings.config_rig import refusal, written


def test_without_a_file_everything_has_a_value() -> None:
    assert load() == Config()
    assert load().trainer.aggregation is Aggregation.PROMPT  # each prompt's group weighs the same


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[quue]\n", "quue is not a known key: did you mean queue? (known: run, services, policy, queue,"),
        (
            "[queue]\nsize = 3\n",
            "queue.size is not a known key (known: policy, batch_groups, max_staleness, capacity,",
        ),
        ("[queue]\ncapacity = 'many'\n", "queue.capacity: must be a whole number"),
        (
            "[queue]\ncapacity = 3\nbatch_groups = 8\n",
            "queue.capacity (3) must be at least queue.batch_groups (8)",
        ),
        ("[queue]\ngroup_size = 1\n", "queue.group_size: must be greater than or equal to 2"),
        (
            "[queue]\ngroup_size = 99999999999\n",
            "queue.group_size: must be less than or equal to 32767",
        ),
        ("[queue]\nwindow = 3\n", "queue.window is not a known key"),
        (
            "[servers]\nurls = ['10.0.0.1:30000']\n",
            "'10.0.0.1:30000' is not a URL of a rollout server: write http://host:port",
        ),
        ("[servers]\nurls = ['http://h:99999']\n", "'http://h:99999' is not a URL of a rollout server"),
        (
            "[gateway]\nurls = ['http://h:99999']\n",
            "gateway.urls: 'http://h:99999' is not a URL of a gateway: write http://host:port",
        ),
        ("[gateway]\nurls = ['http://[::1']\n", "'http://[::1' is not a URL of a gateway"),
        ("[gateway]\nurls = ['h:1']\n", "'h:1' is not a URL of a gateway"),
        (
            "[gateway]\nurls = ['http://h:1', 'http://h:1/']\n",
            "'http://h:1/' is named twice: name each server once",
        ),
        ("[servers]\nurls = ['http://h:1', 'http://H:1']\n", "'http://H:1' is named twice"),
        ("[servers]\nurls = ['https://h', 'https://h:443/']\n", "'https://h:443/' is named twice"),
        ("[servers]\nurls = ['http://h:1/path?x=1']\n", "'http://h:1/path?x=1' has a ? or a #"),
        ("[servers]\nurls = ['http://h:1#x']\n", "'http://h:1#x' has a ? or a #"),
        ("[servers]\nurls = ['http://a b:1']\n", "'http://a b:1' is not a URL of a rollout server"),
        (
            "[servers]\nurls = ['http://h/" + "\u00e4" * 1000 + "']\n",
            "has 2,009 bytes, and a URL of a rollout server at most 2,000: shorten it",
        ),
        ("[servers]\nurls = ['http://[::1']\n", "'http://[::1' is not a URL of a rollout server"),
        ("run = 5\n", "run: must be a table, got 5"),
        ("[rollout.context.shell]\nkeep_turns = 3\n", "rollout.context.shell.policy: Field required"),
        (
            "[run]\nname = 'Nice Run'\n",
            "'Nice Run' is not a valid name: use 1 to 32 characters of a-z, 0-9, _ and -",
        ),
        (
            "[reward]\nzero_signal = 'never'\n",
            "reward.zero_signal: Input should be 'performance' or 'returns'",
        ),
        (
            "[[stage.then]]\nname = 'b'\nshares = 3\n",
            "stage.then.0.shares is not a known key (known: name, domains, difficulties,",
        ),
        (
            "[stage.limits.coding]\nturns = 3\n",
            "is not a known key: did you mean max_turns? (known: max_turns, max_context)",
        ),
        (
            "[[stage.then]]\nname = 'b'\n",
            "stage: stage 'main' is followed by another one: it ends by end_batches",
        ),
        ("[trainer]\nloss = 'ppo'\n", "trainer.loss: Input should be 'cispo', 'grpo', 'dapo', 'gspo',"),
        (
            "[trainer]\nloss = 'grpo'\nratio_max = 0.2\n",
            "trainer: ratio_min is 0.8 and ratio_max 0.2: they are absolute ratios with 1 between them",
        ),
        (
            "[trainer]\nexpert_bias = 'joint'\n",
            "trainer.expert_bias: a joint rule does not exist: the bias only selects experts and weighs none, so the loss has no gradient",
        ),
        ("[trainer]\nexpert_bias = 'moving'\n", "trainer.expert_bias: Input should be 'frozen' or 'balance'"),
        (
            "[trainer]\nexpert_bias = 'frozen'\nbias_rate = 0.01\n",
            "trainer: expert_bias is 'frozen' and bias_rate 0.01: a rate above 0 goes with \"balance\"",
        ),
        (
            "[trainer]\nexpert_bias = 'balance'\nbias_rate = 0\n",
            "trainer: expert_bias is 'balance' and bias_rate 0",
        ),
        ("[trainer]\nratio_min = 1.0\nratio_max = 1.0\n", "trainer: ratio_min is 1.0 and ratio_max 1.0"),
        ("[trainer]\nicepop_min = 6\n", "trainer: icepop_min (6.0) must be less than icepop_max (5.0)"),
        (
            "[trainer]\nmask = 'icepop'\nicepop_max = 0.9\n",
            "trainer: icepop_min is 0.5 and icepop_max 0.9: they are absolute ratios with 1 between them",
        ),
        ("[trainer]\nicepop_min = 1.2\n", "trainer: icepop_min is 1.2 and icepop_max 5.0: they are absolute"),
        (
            "[trainer]\nmask = 'mis'\nmis_max = 0.2\n",
            "trainer: mis_max is 0.2: it is an absolute ratio of at least 1, so an offset of 0.2 above 1 is written 1.2",
        ),
        ("[trainer]\ntis_max = 0.2\n", "trainer: tis_max is 0.2: it is an absolute ratio of at least 1"),
        (
            "[trainer]\nschedule = 'cosine'\nwarmup_steps = 5\n",
            "trainer: schedule is 'cosine', so decay_steps (0) must be more than warmup_steps (5)",
        ),
        ("[trainer]\nbetas = [0.9, 1.0]\n", "trainer.betas.1: must be less than 1"),
        ("[trainer]\neps = 1e-46\n", "trainer.eps: must be at least 1e-37"),
        ("[trainer]\neps = inf\n", "trainer.eps: must be a finite number"),
        ("[trainer]\nlr = inf\n", "trainer.lr: must be a finite number"),
        ("[trainer]\nweight_decay = inf\n", "trainer.weight_decay: must be a finite number"),
        ("[reward]\ngamma = 1.5\n", "reward.gamma: must be less than or equal to 1"),
        ("[trainer]\ntis_max = inf\n", "trainer.tis_max: must be a finite number"),
        ("[rollout]\nscaffolds = {shell = 0}\n", "scaffolds must be shares >= 0 with at least one above 0"),
        (
            f"[rollout]\nscaffolds = {{'{'ж' * 2049}:Mine' = 1}}\n",
            f"the path of the scaffold '{'ж' * 80}…' has more than 4,096 bytes: move it to a shorter one",
        ),
        ("queue = 3\n", "queue: must be a table, got 3"),
        ("[queue\n", "is not valid TOML"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_file(tmp_path: Path, text: str, sentence: str) -> None:
    message = refusal(tmp_path, text)
    assert sentence in message and str(tmp_path / "penstock.toml") in message


def test_every_wrong_key_is_named_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[queue]\nsize = 3\n[trainer]\nlr = 0\n")
    assert "queue.size" in message and "trainer.lr" in message


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist; `penstock init` writes one"):
        load(tmp_path / "nothing.toml")


def test_services_come_from_the_file_then_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://from-environment/x")
    monkeypatch.setenv("NATS_URL", "nats://from-environment")
    config = load(written(tmp_path, "[services]\nnats_url = 'nats://from-file'\n"))
    assert config.services.database_url == "postgresql://from-environment/x"
    assert config.services.nats_url == "nats://from-file"


def test_what_a_run_keeps_has_no_passwords_and_comes_back_the_same(tmp_path: Path) -> None:
    config = load(
        written(tmp_path, "[services]\ndatabase_url = 'postgresql://u:hunter2@h/x'\n[queue]\ncapacity = 30\n")
    )
    stored = config.to_json()
    assert "hunter2" not in str(stored) and stored["queue"]["window"] == 9
    assert Config.from_json(stored) == config.model_copy(update={"services": Config().services})


@pytest.mark.parametrize(
    ("fraction", "capacity", "window"), [(0.3, 24, 7), (0.29, 100, 29), (0.01, 10, 1), (1, 8, 8)]
)
def test_the_window_is_the_fraction_of_the_capacity_rounded_down(
    fraction: float, capacity: int, window: int
) -> None:
    assert (
        Config.model_validate(
            {"queue": {"capacity": capacity, "window_fraction": fraction, "batch_groups": 1}}
        ).queue.window
        == window
    )


def test_ratio_bounds_that_are_not_given_are_the_losss_own() -> None:
    def bounds(**section: object) -> tuple[float, float]:
        trainer = Config.model_validate({"trainer": section}).trainer
        return trainer.ratio_min, trainer.ratio_max

    assert bounds() == bounds(loss="cispo") == (0.0, 5.0)
    assert bounds(loss="grpo") == (0.8, 1.2) and bounds(loss="dapo", ratio_min=0.7) == (0.7, 1.28)


def test_a_canarys_tolerance_that_is_not_given_is_that_of_the_trainers_dtype() -> None:
    def tolerance(**sections: dict[str, object]) -> float:
        return Config.model_validate(sections).gateway.canary_tolerance

    assert tolerance() == tolerance(trainer={"dtype": "float32"}) == 0.02
    assert tolerance(trainer={"dtype": "bfloat16"}, gateway={"port": 0}) == 0.2
    assert tolerance(trainer={"dtype": "bfloat16"}, gateway={"canary_tolerance": 0.05}) == 0.05
    with pytest.raises(ValidationError, match="'float32' or 'bfloat16'"):
        tolerance(trainer={"dtype": "float16"})


def test_what_a_run_stored_before_a_key_existed_is_the_configuration_that_it_was() -> None:
    stored = Config().to_json()
    old = ("parts", "lr", "betas", "eps", "weight_decay", "clip_norm", "ratio_min", "ratio_max", "negative_scale",
           "aggregation", "pack_tokens", "keep_checkpoints", "permute_advantages")  # fmt: skip
    stored["trainer"] = {key: stored["trainer"][key] for key in old}
    new = ("difficulties", "limits", "then")
    stored["stage"] = {key: value for key, value in stored["stage"].items() if key not in new}
    stored["sampling"] = {k: v for k, v in stored["sampling"].items() if not k.startswith("repetition")}
    stored["reward"] = {
        key: stored["reward"][key] for key in list(stored["reward"]) if key not in ("gamma", "batch_scale")
    }
    assert differences(Config.from_json(stored), Config()) == []


@pytest.mark.parametrize(
    "bounds", [{"icepop_max": 0.9}, {"icepop_min": 1.2}, {"mis_max": 0.2}, {"tis_max": 0.2}]
)
def test_a_run_that_was_stored_with_a_bound_that_excludes_1_can_be_read(bounds: dict[str, float]) -> None:
    stored = Config().to_json()
    stored["trainer"] |= bounds
    assert Config.from_json(stored).to_json()["trainer"] == stored["trainer"]


def test_a_course_of_stages_comes_back_from_the_data_pool_the_same(tmp_path: Path) -> None:
    text = "[stage]\nend_batches = 2\nlimits = {coding = {max_turns = 9}}\n[[stage.then]]\nname = 'b'\ndifficulties = ['hard']\n"
    config = load(written(tmp_path, text))
    assert Config.from_json(config.to_json()) == config and config.stage.then[0].difficulties == ("hard",)
    assert differences(config, load(written(tmp_path, text.replace("hard", "easy")))) == ["stage.then"]


def test_a_stage_ends_by_the_first_condition_that_holds() -> None:
    stage = Config.model_validate(
        {"stage": {"end_batches": 3, "end_train_steps": 9, "end_seconds": 60}}
    ).stage
    assert stage.reached(batches=2, train_steps=8, seconds=59.9) is None
    assert stage.reached(batches=3, train_steps=0, seconds=0) == "3 batches are committed"
    assert stage.reached(batches=0, train_steps=9, seconds=0) == "9 train steps are done"
    assert stage.reached(batches=0, train_steps=0, seconds=61) == "61 seconds have passed"
    assert Config().stage.reached(batches=10**6, train_steps=10**6, seconds=10**6) is None


def test_what_differs_between_two_configurations_is_named() -> None:
    other = Config.model_validate(
        {"queue": {"capacity": 30}, "trainer": {"lr": 1e-3}, "services": {"nats_url": "nats://x"}}
    )
    assert differences(Config(), Config()) == []
    assert differences(Config(), other) == ["queue.capacity", "queue.window", "trainer.lr"]


def test_a_command_of_rollout_servers_has_its_places_filled_in_and_nothing_else(tmp_path: Path) -> None:
    command = '["serve", "--port={port}", "{model}", "{seed}", "{key_file}", "--config={key_config}", "{\\"a\\": 1}"]'
    servers = load(written(tmp_path, f"[servers]\ncommand = {command}\n")).servers
    keys = {"key_file": Path("/run/key"), "key_config": Path("/run/key.yaml")}
    assert servers.takes_key
    assert servers.starts("/models/a b", 30000, 7, **keys) == (
        "serve",
        "--port=30000",
        "/models/a b",
        "7",
        "/run/key",
        "--config=/run/key.yaml",
        '{"a": 1}',
    )
    embedded = load(written(tmp_path, "")).servers
    assert embedded.starts("/models/a", 1, 0, **keys) == () and embedded.takes_key
    without = load(written(tmp_path, '[servers]\ncommand = ["serve", "{port}"]\n')).servers
    assert not without.takes_key


def test_a_command_of_rollout_servers_that_does_not_receive_its_port_is_refused(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, '[servers]\ncommand = ["serve", "--port", "30000"]\n')
    assert "servers.command must say where to listen: use {port}" in sentence


@pytest.mark.parametrize("key", ["scaffolds", "context"])
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("./mine", "mine"),
        ("agent.py", "agent.py"),
        ("agent.py:Mine", "agent.py:Mine"),
        ("scaffold.toml", "scaffold.toml"),
        ("../a:b/agent.py:Mine", "../a:b/agent.py:Mine"),
        ("x.py/agent", "x.py/agent"),
        ("/else/where.py:A", "/else/where.py:A"),
        ("shell", None),
        ("mine.agents:Mine", None),
    ],
)
def test_a_scaffold_that_is_named_by_a_path_is_relative_to_the_configuration(
    name: str, path: str | None, key: str, tmp_path: Path
) -> None:
    value = '{ policy = "sliding_window" }' if key == "context" else "1.0"
    (file := tmp_path / "penstock.toml").write_text(f'[rollout]\n{key} = {{ "{name}" = {value} }}\n')
    expected = name if path is None else str((tmp_path / path).resolve())
    assert list(getattr(load(file).rollout, key)) == [expected]


def test_a_program_with_a_slash_is_relative_to_the_configuration(tmp_path: Path) -> None:
    text = '[servers]\ncommand = ["./serve", "{port}", "./x"]\n[sandbox.container]\nengine = "bin/podman"\n'
    config = load(written(tmp_path, text))
    assert config.servers.command == [str(tmp_path / "serve"), "{port}", "./x"]
    assert config.sandbox.container.engine == str(tmp_path / "bin/podman")
    plain = load(written(tmp_path, '[servers]\ncommand = ["serve", "{port}"]\n'))
    assert (plain.servers.command[0], plain.sandbox.container.engine) == ("serve", "podman")


def test_a_rate_of_the_experts_bias_means_balance_and_balance_has_a_rate() -> None:
    rules = [
        Config.model_validate({"trainer": given}).trainer
        for given in ({}, {"bias_rate": 0.01}, {"expert_bias": "balance"}, {"bias_rate": 0.0})
    ]
    assert [(str(rule.expert_bias), rule.bias_rate) for rule in rules] == [
        ("frozen", 0.0),
        ("balance", 0.01),
        ("balance", 0.001),
        ("frozen", 0.0),
    ]
    assert all(Config.from_json(Config(trainer=rule).to_json()).trainer == rule for rule in rules)


def test_the_defaults_fit_a_real_run_and_the_demo_and_chaos_state_limits_of_their_own() -> None:
    bounds = {"timeout_s", "completion_s", "tool_timeout_s", "observation_lines"}

    def limits(config: Config) -> dict[str, Any]:
        return {
            "stage": config.stage.model_dump(include={"max_turns", "max_context"}),
            "sampling": config.sampling.model_dump(include={"max_new_tokens"}),
            "rollout": config.rollout.model_dump(include=bounds),
            "sandbox": config.sandbox.model_dump(include={"memory_mb", "cpu_s", "disk_mb", "processes"}),
        }

    real, small = Config(), {"memory_mb": 512, "processes": 64, "cpu_s": 60, "disk_mb": 64}
    assert limits(real) == {
        "stage": {"max_turns": 200, "max_context": 0},
        "sampling": {"max_new_tokens": 32_768},
        "rollout": {
            "timeout_s": 14_400.0,
            "completion_s": 7200.0,
            "tool_timeout_s": 600.0,
            "observation_lines": 0,
        },
        "sandbox": {"memory_mb": 4096, "processes": 512, "cpu_s": 14_400, "disk_mb": 10_240},
    }
    assert real.gateway.session_ttl_s == 86_400.0
    demo = tomllib.loads(
        demo_prepare.CONFIG.format_map(
            dict.fromkeys(("seed", "seconds", "train_steps"), 1)
            | {"control": "false"}
            | dict.fromkeys(("model", "scaffolds", "sandbox", "servers", "dtype"), "")
        )
    )
    for given in (demo, chaos_prepare.SETTINGS):
        for section, keys in limits(real).items():
            assert keys.keys() <= given[section].keys(), section
        assert {key: given["sandbox"][key] for key in small} == small
        assert (given["rollout"]["tool_timeout_s"], given["rollout"]["observation_lines"]) == (60, 3)


def test_the_template_of_a_new_run_shows_the_defaults(tmp_path: Path) -> None:
    made = load(write_template(tmp_path / "new", "new", "model"))
    default = Config()
    assert (made.stage, made.sampling, made.rollout, made.sandbox) == (
        default.stage,
        default.sampling,
        default.rollout,
        default.sandbox,
    )


def test_a_session_that_would_end_before_its_attempt_is_refused(tmp_path: Path) -> None:
    text = "[gateway]\nsession_ttl_s = 100\n[rollout]\ntimeout_s = "
    assert load(written(tmp_path, text + "99")).gateway.session_ttl_s == 100
    assert "gateway.session_ttl_s (100) must be greater than rollout.timeout_s (100)" in refusal(
        tmp_path, text + "100"
    )


def test_a_domain_may_have_the_models_context_in_a_stage_that_bounds_it() -> None:
    stage = Config.model_validate(
        {"stage": {"max_context": 4096, "limits": {"agent": {"max_context": 0}, "coding": {"max_turns": 9}}}}
    ).stage
    assert (stage.context("agent"), stage.context("coding"), stage.context("general")) == (0, 4096, 4096)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ('queue.capacity="18"', "queue.capacity: must be a whole number without quotes, got '18'"),
        ("queue.capacity=18.5", "queue.capacity: must be a whole number, got 18.5"),
        ("queue.capacity=true", "queue.capacity: must be a whole number, got True"),
        ("sampling.temperature=true", "sampling.temperature: must be a number, got True"),
        ("sampling.temperature=inf", "sampling.temperature: must be a finite number, got inf"),
        ("sampling.temperature=-0.5", "sampling.temperature: must be greater than or equal to 0"),
        ("sampling.top_p=1.5", "sampling.top_p: must be less than or equal to 1"),
        ("sampling.top_k=0", "sampling.top_k: must be -1, for all tokens, or at least 1"),
        ("sampling.top_k=-7", "sampling.top_k: must be greater than or equal to -1"),
        ("sampling.max_new_tokens=0", "sampling.max_new_tokens: must be greater than or equal to 1"),
        ("timeouts.resend_s=nan", "timeouts.resend_s: "),
        ('web.exposed="true"', "web.exposed: must be true or false, without quotes, got 'true'"),
        ("stage.domains={coding=-1, general=2}", "domains must be shares >= 0 with at least one above 0"),
        ("rollout.scaffolds={shell=nan}", "rollout.scaffolds.shell: must be a finite number, got nan"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_key_and_what_it_must_be(
    tmp_path: Path, override: str, sentence: str
) -> None:
    assert sentence in refusal(tmp_path, "", override)


def test_a_temperature_of_minus_zero_is_zero_as_postgres_would_keep_it(tmp_path: Path) -> None:
    for temperature in (
        load(written(tmp_path, ""), ["sampling.temperature=-0.0"]).sampling.temperature,
        checked({"temperature": -0.0})["temperature"],
    ):
        assert math.copysign(1.0, temperature) == 1.0


def test_a_seed_is_any_whole_number_of_64_bits_and_comes_back_the_same(tmp_path: Path) -> None:
    seed = 1795625756434233656  # of a clock that counts nanoseconds
    own = load(written(tmp_path, ""), [f"run.seed={seed}"])
    assert Config.from_json(json.loads(json.dumps(own.to_json()))).run.seed == seed


def test_a_file_of_windows_is_read_and_another_encoding_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "")
    file.write_bytes(codecs.BOM_UTF8 + b'[run]\r\nname = "a"\r\n')
    assert load(file).run.name == "a"
    file.write_bytes('[run]\nname = "a"\n'.encode("utf-16"))
    with pytest.raises(ConfigurationError, match=rf"^{file} is UTF-16 text: save it as UTF-8$"):
        load(file)


def test_every_path_in_a_file_is_relative_to_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    text = """
        [policy]
        model = "../../models/start"
        directory = "policies"
        [gateway]
        secret_file = "secret"
        [rollout]
        scaffolds = { "own/agent" = 1.0, shell = 1.0 }
        [sandbox.images]
        directory = "images"
        build_files = { ca = "ca.crt" }
        [sandbox.kubernetes]
        token_file = "token"
        ca_file = "/etc/ca.crt"
        [servers]
        key_file = "key"
        [services]
        database_url = "postgresql://u:p%3F@h/db?sslmode=verify-full&sslrootcert=certs%2Fca.pem&sslcert=/etc/me.crt&sslkey=me.key"
    """
    file = written(run, text)
    for directory, given in (
        (run, "penstock.toml"),
        (tmp_path, "runs/first/penstock.toml"),
        (tmp_path / "elsewhere", str(file)),
    ):
        monkeypatch.chdir(directory)
        config = load(Path(given))
        assert config.policy.model == str(run / "../../models/start")
        assert config.policy.directory == str(run / "policies")
        assert config.gateway.secret_file == str(run / "secret")
        assert list(config.rollout.scaffolds) == [str(run / "own/agent"), "shell"]
        assert config.sandbox.images.directory == str(run / "images")
        assert config.sandbox.images.build_files == {"ca": str(run / "ca.crt")}
        assert config.sandbox.kubernetes.token_file == str(run / "token")
        assert config.sandbox.kubernetes.ca_file == "/etc/ca.crt"
        assert config.servers.key_file == str(run / "key")
        assert config.services.database_url == (
            f"postgresql://u:p%3F@h/db?sslmode=verify-full&sslrootcert={run}/certs/ca.pem&sslcert=/etc/me.crt&sslkey={run}/me.key"
        )
    monkeypatch.chdir(tmp_path)
    assert load(file, ["policy.model=models/other"]).policy.model == str(tmp_path / "models/other"), (
        "of the working directory"
    )
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/db?passfile=pass")
    file.write_text("")
    assert load(file).services.database_url == "postgresql://h/db?passfile=pass", "of the working directory"


@pytest.mark.parametrize(
    ("written_as", "found"),
    [
        ("sslcrl=a.crl&passfile=p", "sslcrl=/run/a.crl&passfile=/run/p"),
        ("servicefile=s.conf&service=x", "servicefile=/run/s.conf&service=x"),
        ("servicefile=~/s.conf&service=x", "servicefile=~/s.conf&service=x"),
        ("sslrootcert=system&sslmode=verify-full", "sslrootcert=system&sslmode=verify-full"),
        ("sslrootcert=&sslcert&options=-c%20a%3Db", "sslrootcert=&sslcert&options=-c%20a%3Db"),
        ("sslkey=my%20key&application_name=a/b", "sslkey=/run/my%20key&application_name=a/b"),
    ],
)
def test_only_the_files_of_a_url_are_resolved(written_as: str, found: str) -> None:
    assert (
        with_absolute_files(f"postgresql://h/db?{written_as}", Path("/run")) == f"postgresql://h/db?{found}"
    )
    assert with_absolute_files("postgresql:///db", Path("/run")) == "postgresql:///db"


def test_every_key_that_holds_a_path_is_resolved() -> None:
    named_like_paths = {
        key.name
        for key in all_keys()
        if key.name.rpartition(".")[2] in ("model", "directory") or key.name.endswith(("_file", "_dir"))
    }
    assert named_like_paths == set(PATHS)


NUL, HALF = "a\\u0000b", "\udcff"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'[web]\nhosts = ["ok", "{NUL}"]\n', "web.hosts: 'a\\x00b' has a NUL"),
        (f'[gateway]\nhost = "{NUL}"\n', "gateway.host: "),
        (f'[gateway]\nsecret_file = "{NUL}"\n', "gateway.secret_file: "),
        (f'[metrics]\nhost = "{NUL}"\n', "metrics.host: "),
        (f'[policy]\ndirectory = "{NUL}"\n', "policy.directory: "),
        (f'[servers]\nkey_file = "{NUL}"\n', "servers.key_file: "),
        (f'[servers]\ncommand = ["a{{port}}", "{NUL}"]\n', "servers.command: "),
        (f'[[stage.then]]\nname = "{NUL}"\n', "stage.then.name: "),
        (f'[rollout.scaffolds]\n"/{NUL}" = 1\n', "rollout.scaffolds: the key '/a\\x00b' has a NUL"),
        (f'[rollout.context."/{NUL}"]\npolicy = "none"\n', "rollout.context: the key "),
        (f'[sandbox.images.build_files]\na = "{NUL}"\n', "sandbox.images.build_files.a: "),
        (f'"{NUL}" = 1\n', "the file: the key "),
    ],
)
def test_text_that_cannot_be_stored_is_refused_by_its_key(tmp_path: Path, text: str, key: str) -> None:
    sentence = refusal(tmp_path, text)
    assert sentence.startswith(f"{tmp_path}/penstock.toml: ") and key in sentence
    assert "\0" not in sentence and sentence.endswith("take it out")


@pytest.mark.parametrize("value", [f'"{NUL}"', f"['{HALF}']", HALF])
def test_text_that_cannot_be_stored_is_refused_in_an_override_and_in_a_mapping(
    tmp_path: Path, value: str
) -> None:
    assert refusal(tmp_path, "", f"web.hosts={value}").startswith("--set: web.hosts: ")
    for bad in ("a\0", HALF):
        with pytest.raises(ValidationError, match=r"web\.hosts: .* take it out"):
            Config.model_validate({"web": {"hosts": [bad]}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('scaffolds = {"./a" = 0.9, "../x/a" = 0.1}', "rollout.scaffolds: './a' and '../x/a' are the same directory: keep one of them"),
        ('scaffolds = {"a/" = 0.9, "./a" = 0.1}', "rollout.scaffolds: 'a/' and './a' are the same directory"),
        ('context = {"./a" = {policy = "none"}, "./b/../a" = {policy = "none"}}', "rollout.context: './a' and './b/../a' are the same directory"),
    ],
)  # fmt: skip
def test_two_keys_of_one_directory_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    home = tmp_path / "x"
    home.mkdir()
    assert sentence in refusal(home, f"[rollout]\n{text}\n")
    load(written(home, '[rollout]\nscaffolds = {"./a" = 0.9, "../a" = 0.05, a = 0.05}\n'))
