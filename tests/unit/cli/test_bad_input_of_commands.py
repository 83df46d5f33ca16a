"""Every command of the command line with wrong input: a configuration, a directory, a database, a flag or a value. It prints one sentence on
standard error, has the documented exit status and no traceback, at any width."""

import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from orchestrator.cli import main, processes
from orchestrator.deploy.home import write_template
from tests.unit.cli.commands import COMMANDS, ROOT

pytestmark = [pytest.mark.timeout(20), pytest.mark.tier("look")]  # seconds of each command

REPOSITORY = Path(__file__).resolve().parents[3]
TOPOLOGY = str(REPOSITORY / "ops/cluster/topology.toml")
NEEDS: Mapping[str, list[str]] = {
    "sql": ["select 1"],
    "drain": ["runner", "runner"],
    "scale": [TOPOLOGY, "runners=3", "--target=systemd"],
    "rewind": ["--to-batch=1"],
    "run cancel": ["1"],
    "show rollout": ["1"],
    "show group": ["1"],
    "show batch": ["1"],
    "tasks publish": ["task"],
    "tasks check": ["task"],
    "tasks vet": ["task"],
    "tasks generate": ["generated"],
    "tasks import harbor": ["task", "--to=imported"],
    "tasks import terminal-bench": ["task", "--to=imported"],
    "tasks import swe": ["rows.jsonl", "--to=imported"],
    "images bootstrap": ["debian:12"],
    "images build": ["task"],
    "images import": ["task"],
    "images export": ["mine", "mine.tar"],
    "scaffold new": ["mine"],
    "scaffold install": ["opencode"],
    "scaffold check": ["shell"],
    "dead show": ["g7"],
    "dead retry": ["g7"],
    "dead drop": ["m7"],
    "eval": ["--suite=task"],
    "eval show": ["task"],
    "cluster render": [TOPOLOGY, "--target=systemd", "--out=out"],
    "cluster check": ["cluster"],
    "cluster wait": ["--timeout=0.1"],
    "trainer verify": ["--batch=1"],
    "trainer tree": ["--batch=1", "--svg=tree.svg"],
    "sft record": ["--out=out"],
    "sft export": ["--out=out"],
    **{
        f"export {form}": ["--out=out"]
        for form in ("atif", "inspect", "parquet", "otlp", "tensorboard", "wandb")
    },
}
"""The arguments that a command needs in addition to a configuration."""
CONFIGURED = sorted(
    name for name, each in COMMANDS.items() if any("--config" in param.opts for param in each.params)
)


@dataclass(frozen=True)
class Ended:
    """The end of a command, and its output."""

    code: object
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The single line of standard error with which a command refuses."""
        assert self.err.startswith("penstock: ") and self.err.count("\n") == 1, self.err
        return self.err.removeprefix("penstock: ").rstrip()

    @property
    def usage(self) -> str:
        """Standard error of wrong usage as one line (it is wrapped at the width)."""
        assert self.code == 2 and "Traceback" not in self.err, self
        return " ".join(self.err.split())


Penstock = Callable[..., Ended]


@pytest.fixture
def penstock(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Penstock:
    """Run a command in this process, in an empty directory with a task, without a terminal, 40 columns wide, without a log of its own."""

    def replaced(*_: object) -> None:
        raise ValueError("this process would be replaced")

    for module in (sys.modules[main.__module__], processes):
        monkeypatch.setattr(module, "configure", lambda *_, **__: None)
    monkeypatch.setattr(sys.modules[main.__module__], "app", ROOT)  # made once, and not for each call
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    monkeypatch.setattr("os.execve", replaced)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task/tests").mkdir(parents=True)
    (tmp_path / "task/task.toml").touch()
    (tmp_path / "task/instruction.md").write_text("Write hi into out.txt.\n")
    (tmp_path / "task/tests/test.sh").write_text("echo 0 > /logs/verifier/reward.txt\n")
    for variable in ("DATABASE_URL", "NATS_URL"):
        monkeypatch.delenv(variable, raising=False)

    def run(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["penstock", *words])
        code: object = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        output = capfd.readouterr()
        return Ended(code, output.out, output.err)

    return run


def called(name: str, *configs: str) -> list[str]:
    """The words of a command on a configuration; `compare` takes two."""
    given = configs * 2 if name == "compare" else configs
    return [*name.split(), *NEEDS.get(name, []), *(word for config in given for word in ("-c", config))]


def test_what_each_command_asks_for_is_known() -> None:
    asks = {name for name, each in COMMANDS.items() if any(param.required for param in each.params)}
    assert asks - {"compare", "size"} <= set(NEEDS) <= set(COMMANDS)


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_configuration_that_does_not_exist_is_named_with_what_writes_one(
    name: str, penstock: Penstock, tmp_path: Path
) -> None:
    ended = penstock(*called(name, "nowhere/penstock.toml"))
    assert (ended.code, ended.out) == (1, "")
    assert f"{tmp_path}/nowhere/penstock.toml does not exist; write one with: penstock init" in ended.sentence


@pytest.mark.parametrize("name", CONFIGURED)
def test_an_empty_place_is_not_the_working_directory(name: str, penstock: Penstock) -> None:
    assert "it is empty: give a path" in penstock(*called(name, "")).usage


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_directory_that_is_not_of_a_run_is_named_with_what_makes_it_one(
    name: str, penstock: Penstock, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    ended = penstock(*called(name, "empty"))
    assert (ended.code, ended.out) == (1, "")
    assert f"write one with: penstock init {tmp_path}/empty" in ended.sentence


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_configuration_that_is_not_toml_or_has_an_unknown_key_is_named(
    name: str, penstock: Penstock, tmp_path: Path
) -> None:
    file = tmp_path / "bad" / "penstock.toml"
    file.parent.mkdir()
    file.write_text("[queue]\nwindow = 3\n")
    if name in (
        "down",
        "logs",
    ):  # they read no key: with any state of its file, a run can be stopped and its logs read
        assert penstock(*called(name, "bad")).code == 0
        return
    ended = penstock(*called(name, "bad"))
    assert (ended.code, ended.out) == (1, "")
    assert "penstock.toml: queue.window" in ended.sentence
    file.write_text("[queue\n")
    assert "penstock.toml is not valid TOML" in penstock(*called(name, "bad")).sentence


WITHOUT_SERVICES = {
    "config": (0, "whether the run keeps other values cannot be known"),
    "tasks check": (0, "[sandbox], [tasks]: the values of the file"),
    "tasks import harbor": (0, "[sandbox], [tasks]: the values of the file"),
    "tasks import terminal-bench": (
        1,
        "[sandbox], [tasks]: the values of the file",
    ),  # the task is of another form
    "tasks import swe": (1, "[sandbox], [tasks]: the values of the file"),
    "scale": (0, ""),  # a topology alone, where no host of a living runner is needed
    "env": (0, ""),
    "logs": (0, ""),
    "metrics targets": (0, ""),
    "down": (0, ""),
    "doctor": (1, ""),  # its table reports it
    **{
        f"images {name}": (1, "") for name in ("bootstrap", "build", "import", "export", "list", "prune")
    },  # images are off
}
"""Commands that do their work without the database: exit status, and their output about it."""
OF_OTHER_PROCESSES = ("trainer", "trainer verify", "trainer tree", "sft export", "sft train")
"""They become, or start, a process that reports it itself (tests/integration/trainer/test_bad_input.py)."""


STAYS = "web"
"""It serves its pages while the database is away, and reports it there (tests/integration/web/test_web.py)."""


@pytest.fixture
def closed() -> Iterator[str]:
    """An address of loopback that refuses connections: its port is taken, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("name", sorted({*CONFIGURED} - {*OF_OTHER_PROCESSES, STAYS}))
def test_services_that_do_not_answer_are_named_with_their_address_and_without_their_password(
    name: str, penstock: Penstock, closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    file = write_template(tmp_path / "first", "", "")
    short = "[timeouts]\npool_start_s = 0.2\npool_connect_s = 1.0\n"  # short patience of starting processes
    file.write_text(file.read_text() + '[servers]\nurls = ["http://127.0.0.1:9"]\n' + short)
    (file.parent / ".penstock/run").mkdir(parents=True)
    (file.parent / ".penstock/run/gateway.url").write_text("http://127.0.0.1:9")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:sesame@{closed}/pool")
    monkeypatch.setenv("NATS_URL", f"nats://me:sesame@{closed}")
    ended = penstock(*called(name, "first"))
    code, says = WITHOUT_SERVICES.get(name, (1, ""))
    assert ended.code == code and "Traceback" not in ended.err, ended
    if name != "env":  # it prints the addresses, for a shell
        assert "sesame" not in ended.err + ended.out
    if name in WITHOUT_SERVICES:
        assert says in ended.err, ended
        return
    problem = ended.err if name == "up" else ended.sentence  # which lists first the services that it uses
    assert "Postgre" in problem or "NATS" in problem, ended
    assert closed in problem.splitlines()[-1], ended


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_flag_that_there_is_not_is_wrong_usage(name: str, penstock: Penstock) -> None:
    if name != "sft train":  # its options are those of another program
        assert "No such option" in penstock(*name.split(), "--no-such-flag").usage


def numbers() -> Iterator[tuple[str, str]]:
    """Every option that is a number, except seeds, which may be any number."""
    for name, command in COMMANDS.items():
        for each in command.params:
            annotation = getattr(each.type_descriptor, "annotation", None)
            number = annotation in (int, float, list[int]) and each.opts[0].startswith("--")
            if number and each.name not in ("seed", "to_batch"):
                yield name, each.opts[0]


@pytest.mark.parametrize(("name", "option"), sorted(numbers()))
def test_a_number_below_what_an_option_can_be_or_no_number_is_wrong_usage(
    name: str, option: str, penstock: Penstock
) -> None:
    for value in ("-7", "seven"):
        assert "Invalid value for" in penstock(*name.split(), f"{option}={value}").usage


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rewind", "--to-batch=-2"], "Invalid value"),
        (["gateway", "--port=70000"], "Invalid value"),
        (["sft", "export", "--out=x", "--min-performance=9"], "Invalid value"),
        (["trainer", "verify", "--batch=1", "--dtype=float8"], "Invalid value"),
        (["drain", "robot", "x"], "Invalid value"),
        (["sql", "--timeout-s=inf", "select 1"], "Invalid value"),
        (["sql", f"--limit={10**30}", "select 1"], "Invalid value"),
        (["audit", f"--sample={10**30}"], "Invalid value"),
        (["prune", "--dead-letters=inf"], "Invalid value"),
        (["eval", "--suite=task", f"--rollouts={10**6}"], "Invalid value"),
        (["tasks", "publish", "task", f"--group-size={10**6}"], "Invalid value"),
        (["eval", "--temperature", "9"], "No such option"),
        (["runs"], "No such command"),
        (["show", "rollout", "first"], "Invalid value"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_value_out_of_range_is_wrong_usage(words: list[str], expected: str, penstock: Penstock) -> None:
    assert expected in penstock(*words).usage


OVERRIDDEN = sorted(
    name for name, each in COMMANDS.items() if any("--set" in param.opts for param in each.params)
)


@pytest.mark.parametrize("name", sorted({*OVERRIDDEN} - {"size"}))
def test_an_override_that_is_malformed_or_of_an_unknown_key_is_named(
    name: str, penstock: Penstock, tmp_path: Path
) -> None:
    write_template(tmp_path / "first", "", "")
    for given, expected in (
        ("queue", "override 'queue' is not of the form section.key=value"),
        ("queue.window=3", "queue.window"),
        ("queue.capacity=ten", "queue.capacity"),
    ):
        ended = penstock(*called(name, "first"), "--set", given)
        assert (ended.code, ended.out) == (1, "") and expected in ended.sentence


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("up -c first --only robot", "unknown process 'robot'; known: rollout-server"),
        ("logs -c first --level loud", "unknown level 'loud'; known: debug"),
        ("logs -c first --since yesterday", "yesterday"),
        ("tasks publish task -c first --purpose work", "--purpose 'work' is unknown; known: train"),
        ("tasks publish nowhere -c first", "nowhere does not exist"),
        ("tasks publish task -c first --label a\udcff", "it is not UTF-8 text (character 2)"),
        ("tasks publish task -c first --label é", "--label 'é' cannot be part"),
        ("config -c first --set sampling.temperature=1e308", "sampling.temperature: must be less than or equal to 100, got 1e+308"),
        ("config -c first --set run.seed=99999999999999999999", "run.seed: must be less than or equal to"),
        ("config -c first --set queue.capacity=99999999999", "queue.capacity: must be less than or equal to 2147483647"),
        ("config -c first --set queue.min_batch_groups=99999999999", "queue.min_batch_groups: must be less than or equal to"),
        ("tasks publish task -c first --domain Robots!", "--domain 'Robots!' is not a valid name"),
        ("tasks publish task -c first --scaffold missing", "--scaffold 'missing' is unknown"),
        ("tasks check nowhere", "nowhere does not exist"),
        ("tasks check first", "holds no task"),
        ("tasks check task --set sandbox.memory_mb=1", "name it with -c"),
        ("tasks generate task --train 0 --heldout 0 --seed x", ""),
        ("tasks generate new --train 0 --heldout 0", "--train 0 --heldout 0 makes no tasks"),
        ("eval -c first", "--suite names no held-out tasks"),
        ("eval --suite nowhere -c first", "nowhere does not exist"),
        ("eval --suite task --policy best -c first", "best"),
        ("eval show task --policy best -c first", "best"),
        ("compare -c first", "there is nothing to compare"),
        ("compare -c first -c first --key speed", "unknown key 'speed'"),
        ("doctor --monitor http://127.0.0.1:1", "it has no effect without --cluster"),
        ("doctor --sandbox --provider cellar", "cellar"),
        ("drain runner x -c first --undo --wait", "--undo"),
        ("run mix coding -c first", "'coding' is not of the form DOMAIN=WEIGHT"),
        ("run mix coding=1 --configured -c first", "not both"),
        ("sql delete -c first", "penstock sql only reads"),
        ("sql delete --json --csv -c first", "not both"),
        ("dead show 7 -c first", "'7' is not a dead letter"),
        ("dead retry x7 -c first", "'x7' is not a dead letter"),
        ("export parquet --out x --versions ten -c first", "--versions 'ten' cannot be read"),
        ("export parquet --out x --state sleeping -c first", "sleeping"),
        ("export parquet --out x --purpose work -c first", "work"),
        ("export parquet --out x --since yesterday -c first", "yesterday"),
        ("export otlp --out x --endpoint nowhere -c first", "--endpoint 'nowhere' is not a URL"),
        ("export otlp --out x --header a=b -c first", "--endpoint"),
        ("export otlp --out x --header nonsense --endpoint http://127.0.0.1:1 -c first", "nonsense"),
        ("export otlp --out x --header =b --endpoint http://127.0.0.1:1 -c first", "--header '' cannot name a header"),
        ("export otlp --out x --header a:=b --endpoint http://127.0.0.1:1 -c first", "--header 'a:' cannot name a header"),
        ("export otlp --out x --header a=€ --endpoint http://127.0.0.1:1 -c first", "--header 'a': the value holds"),
        ("export otlp --out x --header a=1 --header A=2 --endpoint http://127.0.0.1:1 -c first", "--header 'A' is given twice"),
        ("export parquet --out x --versions 9..3 -c first", "--versions '9..3' ends before it begins: write 3..9"),
        ("audit -c first --ledger nowhere", "nowhere"),
        ("rescore -c first --tests nowhere", "nowhere"),
        ("rescore -c first", ""),
        ("size nowhere.toml", "nowhere.toml"),
        ("size --from-run nowhere", "nowhere"),
        ("scale nowhere.toml runners=2", "nowhere.toml"),
        ("scale TOPOLOGY runners", "runners"),
        ("scale TOPOLOGY robots=2", "robots"),
        ("scale TOPOLOGY runners=3 --target mainframe", "mainframe"),
        ("cluster render nowhere.toml --target systemd --out x", "nowhere.toml"),
        ("cluster render TOPOLOGY --target mainframe --out x", "mainframe"),
        ("cluster check nowhere", "nowhere"),
        ("cluster check TOPOLOGY --kubernetes 9.9", "--kubernetes and --rules belong to"),
        ("cluster check manifests --kubernetes 9.9", "9.9"),
        ("init first", "exists already"),
        ("init other --model nowhere", "directory nowhere"),
        ("init other --name Robots!", "Robots!"),
        ("scaffold new first --kind robot", "robot"),
        ("scaffold install missing", "missing"),
        ("scaffold check missing", "missing"),
        ("scaffold check shell --only nothing", "nothing"),
        ("scaffold check shell --provider cellar", "cellar"),
        ("sft record --out x --scaffold missing=1", "missing"),
        ("sft record --out x --scaffold shell=much", "shell=much"),
        ("sft record --out x --sandbox cellar", "cellar"),
        ("sft record --out x --model nowhere", "nowhere"),
        ("sft record --out /proc/x/y", "--out '/proc/x/y' cannot be written"),
        ("runner -c first --gateway http://b --gateway http://a --gateway-socket s", "--gateway-socket"),
        ("runner -c first --gateway nowhere", "'nowhere' is not a URL of a gateway"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_one_of_those_or_does_not_exist_is_named(
    words: str,
    expected: str,
    penstock: Penstock,
    closed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_template(tmp_path / "first", "", "")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me@{closed}/pool")
    monkeypatch.setenv("NATS_URL", f"nats://{closed}")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests/one.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: a}\n"
    )
    ended = penstock(*(TOPOLOGY if word == "TOPOLOGY" else word for word in words.split()))
    assert ended.code in (1, 2) and ended.out == "" and "Traceback" not in ended.err, ended
    if ended.code == 1:
        assert ended.sentence
    assert re.sub(r"\s+", "", expected) in re.sub(r"\s+", "", ended.err)
    assert expected == "" or closed not in ended.err, ended  # found before a service was called


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        "init other --name LONG", "init other --model LONG", "up -c LONG", "up -c first --only LONG", "config -c first --set LONG",
        "config -c first --set LONG=1", "config -c first --set queue.LONG=1", "config -c first --set queue.capacity=LONG",
        "config -c first --set run.name=LONG", "tasks check LONG", "tasks publish task -c first --scaffold LONG",
        "tasks publish task -c first --domain LONG", "compare -c first -c first --key LONG", "logs -c first --level LONG",
        "dead show LONG -c first", "export parquet --out x --versions LONG -c first", "scaffold check LONG", "scaffold new LONG",
        "scale LONG runners=2", "scale TOPOLOGY LONG", "cluster render TOPOLOGY --target LONG --out x", "sft record --out x --scaffold LONG",
        "size LONG", "doctor --sandbox --provider LONG", "eval --suite LONG -c first", "run mix LONG -c first", "sql LONG -c first",
    ],
)  # fmt: skip
def test_a_sentence_about_a_long_value_is_short(words: str, penstock: Penstock, tmp_path: Path) -> None:
    write_template(tmp_path / "first", "", "")
    ended = penstock(
        *(TOPOLOGY if word == "TOPOLOGY" else word.replace("LONG", LONG) for word in words.split())
    )
    assert ended.code in (1, 2) and "Traceback" not in ended.err, ended
    assert len(ended.err) < 1200, len(ended.err)
