"""A value that is put into another language is read there as that value: by YAML 1.1 and 1.2, systemd, shells, Compose, Kubernetes and NATS."""

import html
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.languages import (
    SPECIFIER,
    VARIABLE,
    here_document,
    sbatch_value,
    shell_word,
    systemd_argument,
    systemd_command,
    systemd_value,
    systemd_word,
    toml_text,
    without_interpolation,
)
from orchestrator.deploy.cluster.reading import read
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.render.text import to_yaml
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.deploy.embedded.nats_server import find_nats
from orchestrator.deploy.home import write_template
from orchestrator.recording import stack_configuration
from orchestrator.settings.config import load
from orchestrator.web.guard import _page
from orchestrator.web.standalone_page import _escaped
from tests.unit.cluster.rendered import CLUSTER
from tests.unit.cluster.tools import wants

pytestmark = pytest.mark.tier("cluster")

LINE = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters=f"{VARIABLE}{SPECIFIER}"),
    max_size=30,
)
SHORT = st.text("$%{}()\\\"'` ;#!*?~&|<>=a1:@,\u00e9", max_size=12)
WORDS = LINE | SHORT
NUMBERS = st.from_regex(r"\A[-+]?[0-9]{0,8}\.?[0-9]{0,3}([eE][-+]?[0-9]{1,3})?\Z") | st.sampled_from(
    (
        "1e3", "25921e05", "0o17", "0x1F", "0b11", "1_000", "12:30:45", ".inf", "-.INF", ".nan", "~", "null", "yes", "No", "y", "N", "on", "TRUE",
        "", " ", "-", "- a", "a: b", "#a", "2026-11-28", "=", "<<", "!a", "&a", "*a", "0", "+1", "-0", ".5", "1.", "08",
    )
)  # fmt: skip


class Yaml12(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Reads scalars as YAML 1.2's core schema and Go's readers do."""

    yaml_implicit_resolvers: ClassVar[dict[str | None, Any]] = {}


for tag, pattern in (
    ("null", r"~|null|Null|NULL|"),
    ("bool", r"true|True|TRUE|false|False|FALSE|y|Y|n|N|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF"),
    (
        "number",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|0o?[0-7_]+|0x[0-9a-fA-F_]+|[-+]?0b[01_]+",
    ),
    ("number", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
):
    Yaml12.add_implicit_resolver(f"tag:tests,2026:{tag}", re.compile(rf"^(?:{pattern})$"), None)
    Yaml12.add_constructor(f"tag:tests,2026:{tag}", lambda _, node: (node.tag, node.value))


@given(text=NUMBERS | WORDS | st.text(max_size=20) | st.text("a \n\r\x85\u2028\u2029: -1", max_size=6))
@settings(max_examples=500)
def test_a_text_of_yaml_is_a_text_for_every_version_of_its_readers(text: str) -> None:
    document = {"key": text, text or "empty": ["a", text, {"inner": text}], "count": 3}
    written = to_yaml(document)
    assert yaml.safe_load(written) == document
    numbered = {**document, "count": ("tag:tests,2026:number", "3")}
    assert yaml.load(written, Yaml12) == numbered  # noqa: S506 (a safe loader with other scalars)


@pytest.mark.parametrize("target", ["kubernetes", "helm", "compose"])
@pytest.mark.parametrize("name", ["25921e05", "1e3"])
def test_a_run_whose_name_reads_like_a_number_is_named_by_a_text_everywhere(name: str, target: str) -> None:
    for file, text in render(odd(name=name), target).items():
        if not file.endswith((".yaml", ".yml")):
            continue
        if "{{" in text:  # a template of Helm: by line
            assert not re.search(rf"^\s*(- |[\w./-]+: ){name}\s*$", text, re.MULTILINE), file
            continue
        for document in yaml.load_all(text, Yaml12):
            assert ("tag:tests,2026:number", name) not in list(scalars(document)), file


def scalars(node: Any) -> Iterator[Any]:
    """Every key and value of a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            yield from scalars(value)
    elif isinstance(node, list):
        for value in node:
            yield from scalars(value)
    else:
        yield node


def odd(name: str = "odd", **slurm: str) -> Topology:
    """The topology of two machines with places and options that no language takes as they are."""
    raw = tomllib.loads((CLUSTER / "examples/nodes4.toml").read_text())
    raw["name"] = name
    raw["shared"] |= {"path": "/srv/it's $HOME 50% `id`"}
    raw["bare"] = {"install": "/opt/my $(id) \\ %h", "state": "/var/lib/50% $x", "user": "penstock"}
    raw["slurm"] = {**raw.get("slurm", {}), **slurm}
    raw["secrets"]["directory"] = "/etc/pen stock/%t/$s"
    for pool in raw["servers"]:
        pool["options"] = [*pool.get("options", []), "--json", '{"a": "$(POD_IP) ${X} %h `id`"}']
    return read(raw, "odd.toml")


@given(words=st.lists(WORDS, min_size=1, max_size=5))
@settings(max_examples=60)
def test_a_shell_reads_the_words_that_were_quoted(words: list[str]) -> None:
    line = " ".join(map(shell_word, [*words, f"{VARIABLE}own"]))
    script = f"own='its value'\nprintf '%s\\0' {line}\ncat <<HERE\n{here_document(words[0])} {here_document(VARIABLE)}own\nHERE\n"
    done = subprocess.run(
        ["bash", "-u", "-c", script], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert (
        done.stdout.decode()
        == "".join(f"{word}\0" for word in [*words, "its value"]) + f"{words[0]} its value\n"
    )


def test_the_steps_of_a_slurm_job_get_the_words_of_their_command() -> None:
    topology = odd()
    (script,) = (text for name, text in render(topology, "slurm").items() if name.endswith(".sbatch"))
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0
    head = [line for line in script.splitlines() if line.startswith(("BIN=", "SHARED="))]
    lines = [line for line in script.splitlines() if line.startswith("process rollout-server")]
    stub = [
        "process() { shift 8; printf '%s\\0' \"$@\"; }",
        "NODES=(a b c d)",
        "PENSTOCK_STATE=/state",
        "logs=/logs",
        *head,
        lines[0],
        'printf \'%s\\0\' "$BIN" "$SHARED"',
    ]
    done = subprocess.run(["bash", "-euc", "\n".join(stub)], capture_output=True, check=True)
    words = done.stdout.decode().split("\0")
    assert '{"a": "$(POD_IP) ${X} %h `id`"}' in words
    assert words[-3:] == ["/opt/my $(id) \\ %h/bin", "/srv/it's $HOME 50% `id`", ""]


def of_sbatch(line: str) -> list[str]:
    """The words of an `#SBATCH` line, as sbatch reads them: a backslash takes the next character also between quotes, and # begins a comment."""
    words: list[str] = []
    word, quote, escaped = "", "", False
    for letter in line.removeprefix("#SBATCH ") + " ":
        if escaped:
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "\"'":
            quote = letter
        elif letter == "#":
            break
        elif letter.isspace():
            words, word = [*words, word] if word else words, ""
        else:
            word += letter
    return words


@given(value=WORDS.filter(bool))
@settings(max_examples=200)
def test_sbatch_reads_the_value_that_was_quoted(value: str) -> None:
    assert of_sbatch(f"#SBATCH --account={sbatch_value(value)}") == [f"--account={value}"]


def test_the_options_of_a_slurm_job_are_those_of_the_topology_and_none_of_them_is_a_line_of_its_script() -> (
    None
):
    account, partition, gres = 'the "rl" team #1', "it's,50% $(id)", "gpu:a b\\"
    text = render(odd(account=account, partition=partition, gres=gres), "slurm")["odd.sbatch"]
    header = [of_sbatch(line) for line in text.splitlines() if line.startswith("#SBATCH")]
    assert [f"--account={account}"] in header and [f"--partition={partition}"] in header
    assert [found for (found,) in header if found.startswith(f"--gres={gres}:")]
    for key in ("account", "partition", "gres"):
        with pytest.raises(
            ConfigurationError, match=rf"slurm\.{key} has a line break or another control character"
        ):
            odd(**{key: "x\ntouch /tmp/p"})
        with pytest.raises(ValueError, match="cannot be written into an #SBATCH line"):
            sbatch_value("x\ntouch /tmp/p")


@pytest.mark.parametrize(
    "address", ["a b", "$(id)", 'x"', "-oProxyCommand=id", "a/b", "fd00::1", "a\nb", "tok@host"]
)
def test_a_text_that_cannot_be_an_address_is_refused_by_its_key(address: str) -> None:
    raw = tomllib.loads((CLUSTER / "examples/node8.toml").read_text())
    raw["hosts"][0]["address"] = address
    with pytest.raises(
        ConfigurationError, match=r"hosts\[0\]\.address: .* is not an address: write a host name"
    ):
        read(raw)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("directory", ["/etc/pen stock/$(touch p)", "/etc/it's"])
def test_the_lines_that_make_a_login_write_both_files_where_secrets_are(
    nodes: int, directory: str, tmp_path: Path
) -> None:
    raw = tomllib.loads((CLUSTER / "examples/nodes4.toml").read_text())
    raw["secrets"] |= {
        "directory": str(tmp_path) + directory,
        "nats_login": {"name": "nats", "key": "login"},
        "nats_url": {"name": "nats", "key": "url"},
    }
    raw["nats"] = {**raw.get("nats", {}), "nodes": nodes}
    notes = render(read(raw), "systemd")["README.md"]
    lines = [
        line.strip() for line in notes.splitlines() if line.startswith(("       token=", "       (umask"))
    ]
    (place := Path(str(tmp_path) + directory) / "nats").mkdir(parents=True)
    subprocess.run(["bash", "-euc", "\n".join(lines)], check=True, cwd=tmp_path)
    token = re.fullmatch(r'NATS_TOKEN: "([0-9a-f]{48})"', (place / "login").read_text().splitlines()[0])
    assert token is not None and (place / "url").read_text().count(f"nats://{token[1]}@") == nodes
    assert {each.name for each in place.iterdir()} == {"login", "url"} and not (tmp_path / "p").exists()


def test_a_shared_path_with_a_colon_is_one_path_for_compose() -> None:
    topology = odd()
    shared = topology.shared.model_copy(update={"path": "/srv/a:b:ro"})
    found = [
        volume
        for file, text in render(topology.model_copy(update={"shared": shared}), "compose").items()
        if file.endswith("compose.yaml")
        for service in yaml.safe_load(text)["services"].values()
        for volume in service.get("volumes", [])
        if not isinstance(volume, str)
    ]
    assert {(each["type"], each["source"], each["target"]) for each in found} == {
        ("bind", "/srv/a:b:ro", "/srv/a:b:ro")
    }
    assert {each["read_only"] for each in found} == {True, False}


@pytest.mark.parametrize("name", ["1e3", "true", "inf", "10.0.0.7", "gpu1"])
def test_a_text_of_a_topology_stays_a_text_in_an_option_that_reads_toml(name: str) -> None:
    raw = tomllib.loads((CLUSTER / "examples/node8.toml").read_text())
    raw["hosts"][0]["address"] = name
    units = render(read(raw), "systemd")
    starts = next(text for file, text in units.items() if "-gateway-" in file)
    (line,) = re.findall(r"^ExecStart=(.*)$", starts, re.MULTILINE)
    words = of_systemd(line.replace("=%d/", "=/credentials/"), command=True)
    overrides = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    assert load(None, overrides).gateway.host == name


@given(text=LINE | st.text("\x7f\\\"'\t=#", max_size=8))
@settings(max_examples=100)
def test_a_text_of_toml_is_read_back(text: str) -> None:
    assert tomllib.loads(f"value = {toml_text(text)}") == {"value": text}


def of_systemd(value: str, *, command: bool) -> list[str]:
    """The words of a setting, as systemd.syntax(7), systemd.unit(5) and systemd.service(5) say that they are read."""
    words: list[str] = []
    for found in re.finditer(r'"((?:[^"\\]|\\.)*)"|(\S+)', value):
        word = re.sub(r"\\(.)", r"\1", found[1]) if found[1] is not None else found[2]
        assert not re.search(r"(?<!%)(?:%%)*%(?!%)", word), f"a specifier in {word!r}"
        word = word.replace("%%", "%")
        if command and words:  # in the path of the program, systemd expands no variables
            assert not re.search(r"(?<!\$)(?:\$\$)*\$(?!\$)", word), f"a variable in {word!r}"
            word = word.replace("$$", "$")
        words.append(word)
    return words


@given(
    words=st.lists(
        WORDS.filter(lambda word: not re.search(r"[^\S ]|[\u0080-\u00a0]", word)), min_size=1, max_size=5
    )
)
@settings(max_examples=200)
def test_systemd_reads_the_words_that_were_quoted(words: list[str]) -> None:
    assert of_systemd(systemd_command(["/a $b", *words]), command=True) == ["/a $b", *words]
    assert of_systemd(" ".join(map(systemd_word, words)), command=False) == words
    if words[0] == words[0].strip(" ") and not words[0].endswith("\\"):
        assert systemd_value(words[0]).replace("%%", "%") == words[0]
        return
    with pytest.raises(ValueError, match="remove the blank or the backslash at its end"):
        systemd_value(words[0])


def test_a_line_break_is_refused_before_it_begins_another_setting() -> None:
    for write in (systemd_value, systemd_word, systemd_argument):
        with pytest.raises(ValueError, match="cannot be written into a unit of systemd"):
            write("a\nExecStart=/bin/sh")


@pytest.mark.parametrize("path", ["/opt/it's/run", '/opt/"a"/run', "/opt/a\\b/run"])
def test_a_path_that_systemd_takes_for_no_program_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="remove the quotes and backslashes from its path"):
        systemd_command([path, "it's"])


@wants("systemd-analyze")
def test_systemd_itself_accepts_units_with_odd_places(tmp_path: Path) -> None:
    program = tmp_path / "a$b $HOME ${x} $$ 50%" / "echo"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    words = [str(program), 'a "b"', "50%", "$HOME", "${x}", "back\\slash", "it's", "", ";", "#"]
    unit, variable = tmp_path / "odd.service", systemd_word('A=50% of "it"')
    unit.write_text(
        f"[Service]\nType=oneshot\nExecStart={systemd_command(words)}\n"
        f"Environment={variable}\nWorkingDirectory={systemd_value('/tmp/50%')}\n"
        f"ReadOnlyPaths={systemd_word('/srv/a b')}\n"
    )
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, check=False)
    complaints = [line for line in done.stderr.decode().splitlines() if "odd.service" in line]
    assert complaints == [], complaints


@pytest.mark.parametrize("mark", [VARIABLE, SPECIFIER])
def test_the_marks_of_our_own_variables_are_refused_in_a_topology(mark: str) -> None:
    raw = tomllib.loads((CLUSTER / "topology.toml").read_text())
    raw["shared"]["path"] = f"/srv/{mark}HOME"
    with pytest.raises(ConfigurationError, match=r"'shared\.path' has the character U\+E024 or U\+E025"):
        read(raw)


def odd_hosts() -> Topology:
    """`odd`, with an installation that systemd can start programs from."""
    topology = odd()
    bare = topology.bare.model_copy(update={"install": "/opt/my $(id) %h"})
    return topology.model_copy(update={"bare": bare})


def test_the_units_of_odd_places_name_these_places() -> None:
    units = {name: text for name, text in render(odd_hosts(), "systemd").items() if name.endswith(".service")}
    served = next(text for name, text in units.items() if "rollout-server" in name)
    (starts,) = re.findall(r"^ExecStart=(.*)$", served, re.MULTILINE)
    words = of_systemd(starts, command=True)
    assert words[0].startswith("/opt/my $(id) %h/bin/") and '{"a": "$(POD_IP) ${X} %h `id`"}' in words
    (place,) = re.findall(r"^ReadOnlyPaths=(.*)$", served, re.MULTILINE)
    assert of_systemd(place, command=False) == ["/srv/it's $HOME 50% `id`"]
    gateway = next(text for name, text in units.items() if "-gateway-" in name)
    assert "Environment=DATABASE_URL_FILE=%d/" in gateway, "the directory of credentials is systemd's own"


@pytest.mark.parametrize("target", ["kubernetes", "compose"])
def test_containers_get_options_with_dollars_as_they_are(target: str) -> None:
    raw = '{"a": "$(POD_IP) ${X} %h `id`"}'
    topology = odd()
    if target == "compose":
        topology = topology.model_copy(update={"hosts": topology.hosts})
    found = [
        text
        for file, written in render(topology, target).items()
        if file.endswith("yaml") and "values" not in file
        for document in yaml.safe_load_all(written)
        for text in scalars(document)
        if isinstance(text, str) and text.startswith('{"a": ')
    ]
    assert found and set(found) == {raw.replace("$", "$$")}
    assert without_interpolation([f"{VARIABLE}(POD_IP)", "a$b"]) == ["$(POD_IP)", "a$$b"]


@given(text=WORDS)
@settings(max_examples=100)
def test_a_label_of_prometheus_is_read_back(text: str) -> None:
    registry = CollectorRegistry()
    Gauge("odd", "About odd labels.", ["label"], registry=registry).labels(text).set(1)
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.samples[0].labels == {"label": text}


class Texts(HTMLParser):
    """Collects the texts and attributes of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.attributes: list[str | None] = []

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [value for _, value in attrs]


@given(text=WORDS.filter(bool))
@settings(max_examples=200)
def test_a_page_shows_the_text_and_runs_none_of_it(text: str) -> None:
    page = Texts()
    page.feed(f'<p title="{_escaped(text)}">{_escaped(text)}</p>')
    page.close()
    assert page.attributes == [page.text], "nothing of it became markup"
    alone = Texts()
    alone.feed(_page(f"x{text}"))
    alone.close()
    assert f"X{text}." in html.unescape(alone.text) or f"X{text}." in alone.text


@given(model=LINE | st.text("\x7f\\\"'\t=#", max_size=8))
@settings(max_examples=50)
def test_the_file_of_a_new_run_names_every_model(
    model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = write_template(tmp_path_factory.mktemp("run"), "a", model)
    assert tomllib.loads(file.read_text("utf-8"))["policy"]["model"] == model


@pytest.mark.parametrize("name", ['a "b"', "back\\slash", "{x}", "caf\u00e9 #1"])
def test_the_file_of_a_stack_that_records_names_every_model(name: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    text = stack_configuration(tmp_path / name, slots=1, verify_slots=1, sandbox="local")
    file.write_text(text, "utf-8")
    assert load(file).policy.model == str(tmp_path / name)


def test_nats_reads_the_places_of_its_configuration(tmp_path: Path) -> None:
    (text,) = {each for name, each in render(odd_hosts(), "systemd").items() if name.endswith("nats-0.conf")}
    conf = tmp_path / "nats.conf"
    conf.write_text(
        re.sub(
            r"^include .*\n|^authorization .*\n|  authorization .*\n|  routes.*\n",
            "",
            text,
            flags=re.MULTILINE,
        )
    )
    done = subprocess.run([find_nats().path, "-t", "-c", conf], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.dumps("/var/lib/50% $x/odd/nats-0") in text
