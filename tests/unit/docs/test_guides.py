"""Every name in guides and README exists: commands, options, keys, files, tests, words. Their SQL: tests/integration/queries/test_guides_sql.py."""

import ast
import importlib
import importlib.util
import re
import runpy
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from scaffolds.scaffold_toml import from_toml

from ops.lab.chaos.main import main as chaos
from ops.lab.demo.main import main as demo
from ops.tiers import read as read_tiers
from orchestrator.bus import subjects
from orchestrator.contracts.events import TaskSubmitted, decode
from orchestrator.contracts.states import FailureClass
from orchestrator.deploy.cluster.reading import read as read_topology
from orchestrator.deploy.cluster.topology import Topology
from orchestrator.runtime.failpoints import BOUNDARIES
from orchestrator.settings.config import Config, is_process_key, load
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.keys import check_keys
from orchestrator.tasks.settings import TaskSettings, parse_settings
from sandboxes.conformance import attempts
from tests.guides import GUIDES, PAGES, REPOSITORY, balanced, blocks, commands, inline, prose
from tests.integration.runner.judge_attacks import ATTACKS
from tests.unit.cli.test_help import UsageError, calls, parse

HEAVY = {"torch", "transformers", "datasets"}  # seconds to load: that such modules exist is enough
KEY = re.compile(r"(\w+)\.(\w+)(?:\.\w+)*(?: = .*)?")
"""`queue.capacity`, `stage.limits.coding`, `trainer.ranks = 2`."""

ELSEWHERE = {"tests/test.sh", "tests/Dockerfile", "agents/my-agent", "agents/my-agent/my_agent.py"}
"""Files of a task and of a user; those of a checkpoint's folder `trainer/` end in safetensors."""


def filled(call: Sequence[str]) -> list[str]:
    """Arguments with values instead of the placeholders for a number, a place or a name."""
    acts = ("…", "--install-completion")  # parsing already runs the latter
    return ["7" if word in ("ID", "N") else word for word in call if word not in acts]


def unfit(call: Sequence[str], *, sentence: bool = False) -> str | None:
    """The error in arguments of penstock. In a sentence, a command and an option may lack theirs."""
    try:
        parse(filled(call))
    except UsageError as error:
        missing = ("MissingParameter", "NoArgsIsHelpError", "BadOptionUsage")
        return None if sentence and type(error).__name__ in missing else error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_with_its_options(page: str) -> None:
    found = [(line, call, False) for line in commands(page) for call in calls(line)]
    found += [
        (span, call, True)
        for span in inline(page)
        if span.startswith("penstock ") and "COMMAND" not in span
        for call in calls(span)
    ]
    wrong = [(line, why) for line, call, sentence in found if (why := unfit(call, sentence=sentence))]
    assert wrong == []


def arguments_of(line: str, program: str) -> list[list[str]]:
    """The arguments of each call of a program of ours in a shell line."""
    words = shlex.split(line, comments=True) if balanced(line) else []
    starts = [at for at, word in enumerate(words) if word.removeprefix("./") == program]
    return [words[at + 1 :] for at in starts]


def accepted(function: Any, arguments: Sequence[str]) -> None:
    """Raise UsageError if a program does not have these options."""
    app = typer.Typer()
    app.command()(function)
    typer.main.get_command(app).make_context("x", list(arguments))


@pytest.mark.parametrize("page", PAGES)
def test_every_script_of_ours_has_the_options_tiers_and_names_that_are_used(page: str) -> None:
    tiers = set(read_tiers().tiers)
    benches = {
        name
        for line in re.findall(r"^  ([a-z |]+)\) ", (REPOSITORY / "ops/bench").read_text(), re.M)
        for name in line.split(" | ")
    }
    assert "failpoints" in tiers and "loop" in benches
    for line in [*commands(page), *inline(page)]:
        if "ops/" not in line:
            continue
        for arguments in arguments_of(line, "ops/test"):
            known = tiers | {"everything", "NAME"}
            assert arguments[:1] in ([], ["--tier"]) and (not arguments or arguments[1] in known), line
        for arguments in arguments_of(line, "ops/bench"):
            assert arguments[0] in benches | {"NAME"}, line
            source = "".join(
                found.read_text()
                for room in ("trainer", "ops/lab")
                for form in (".py", "/__main__.py")
                if (found := REPOSITORY / room / "benchmarks" / f"{arguments[0]}{form}").exists()
            )
            assert all(f'"{word}"' in source for word in arguments if word.startswith("--")), line
        for program, function in (("ops/demo", demo), ("ops/chaos", chaos)):
            for arguments in arguments_of(line, program):
                accepted(function, ["1" if word in ("S", "M", "N") else word for word in arguments])


@pytest.mark.parametrize("page", PAGES)
def test_every_module_that_is_run_and_every_test_that_is_named_is_there(page: str) -> None:
    lines = [*commands(page), *(span for span in inline(page) if re.search(r"python -m |^pytest ", span))]
    for line in lines:
        for module, rest in re.findall(r"python -m ([a-z_.]+)([^|&;]*)", line):
            spec = importlib.util.find_spec(module)
            assert spec is not None, line
            if module.split(".")[0] in ("trainer", "orchestrator", "sandboxes"):
                where = (
                    Path(spec.submodule_search_locations[0])
                    if spec.submodule_search_locations
                    else Path(str(spec.origin))
                )
                sources = "".join(f.read_text() for f in ([where] if where.is_file() else where.glob("*.py")))
                options = [word for word in rest.split() if word.startswith("--") and word != "--"]
                assert all(f'"{option.partition("=")[0]}"' in sources for option in options), line
        for path in re.findall(r"\btests/[\w./*]+", line):
            assert list(REPOSITORY.glob(path)), line


SENTENCE = re.compile(r"[a-z0-9]+(?:_[a-z0-9]+){2,}")


def _functions() -> set[str]:
    places = [*(REPOSITORY / "tests").rglob("*.py"), *(REPOSITORY / "sandboxes/conformance").glob("*.py")]
    return {name for file in places for name in re.findall(r"^(?:async )?def (\w+)", file.read_text(), re.M)}


def test_every_test_that_is_named_by_its_sentence_is_there() -> None:
    spans = {span for page in PAGES for span in inline(page) if span.startswith("test_")}
    assert sorted({span for span in spans if SENTENCE.fullmatch(span)} - _functions()) == []


def test_everything_that_stands_in_the_way_of_a_program_is_shown_by_a_check() -> None:
    _, _, rest = PAGES["ops/guides/security.md"].partition("| against access to | defence | shown by |")
    rows = [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[2:]]
    assert len(rows) >= 9
    known = {name for name in dir(attempts) if name.isupper()} | _functions()
    for stands, _, shown in rows:
        spans = re.findall(r"`([^`]+)`", shown)
        assert spans and set(spans) <= known, stands


def test_the_attacks_on_judges_are_those_of_the_guide() -> None:
    _, _, rest = PAGES["ops/guides/security.md"].partition("Programs under test that attack their judge")
    rows = [line.split("|") for line in rest.split("\n\n")[1].splitlines()[2:]]
    assert sorted(row[1].strip() for row in rows) == sorted(ATTACKS)
    assert {row[3].strip() for row in rows} == {"0"}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_file_leads_somewhere(page: str) -> None:
    here = (REPOSITORY / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        where = here / target if target else REPOSITORY / page
        assert where.exists(), f"{page}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", where.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in headings}, (
                link
            )
    for span in inline(page):
        for path, name in re.findall(
            r"(?<![\w./])((?:orchestrator|trainer|agents|sandboxes|migrations|tests|ops)/[\w./*-]+)(?:::(\w+))?",
            span,
        ):
            if path in ELSEWHERE or "safetensors" in span:
                continue
            found = [*REPOSITORY.glob(path.rstrip("/.")), *here.glob(path.rstrip("/."))]
            assert found, f"{page}: `{span}`"
            assert not name or f"def {name}(" in found[0].read_text(), f"{page}: `{span}`"


def places(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_settings_is_read_by_what_it_is_for(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if not (block.language == "toml" or (block.language == "indented" and block.text.startswith("["))):
            continue
        raw = tomllib.loads(block.text)
        if "project" in raw:  # a package that registers a plug-in
            groups = {"penstock.scaffolds", "penstock.context_policies", "penstock.process_signals"}
            assert groups >= set(raw["project"]["entry-points"]), block.text
        elif set(raw) <= places(Config):
            file = tmp_path / "penstock.toml"
            file.write_text(block.text)
            load(file)
        elif set(raw) <= places(Topology):  # a part of one
            whole = tomllib.loads((REPOSITORY / "ops/cluster/examples/nodes4.toml").read_text())
            read_topology({**whole, **{name: {**whole.get(name, {}), **part} for name, part in raw.items()}})
        elif "metadata" in raw:
            parse_settings(block.text)
            check_keys(block.text)
            assert set(raw) <= places(TaskSettings)
        else:  # a scaffold's manifest, in one block or several
            parts = [
                other.text
                for other in blocks(page)
                if {"argv", "program"} & set(tomllib.loads(other.text) if other.language == "toml" else ())
            ]
            assert block.text in parts
            read_manifest(tmp_path, parts)


def read_manifest(directory: Path, parts: Sequence[str]) -> None:
    """The blocks of a page as one scaffold.toml, with the files that they name."""
    whole = "\n".join(parts)
    for name in re.findall(r'"([\w-]+\.(?:py|lock|json))"', whole):
        (directory / name).write_text("")
    (directory / "scaffold.toml").write_text(whole)
    from_toml(directory / "scaffold.toml")


def sources() -> str:
    return "".join(
        path.read_text()
        for top in ("orchestrator", "trainer", "sandboxes", "agents")
        for path in (REPOSITORY / top).rglob("*.py")
    )


def test_every_key_that_is_named_is_a_setting_or_something_else_that_there_is() -> None:
    code = sources()
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    wrong = []
    for page in PAGES:
        for span in inline(page):
            found = KEY.fullmatch(span)
            if found is None or found[1] not in sections:
                continue
            section, key = found[1], found[2]
            model = sections[section]
            assert isinstance(model, type) and issubclass(model, BaseModel)
            known = {*model.model_fields, *getattr(model, "model_computed_fields", {})}
            # `rollout.reported` is an event of the log, `trainer.commit` a failpoint, `gateway.url` and `reward.json` files, `trainer.loop` a module.
            module = (REPOSITORY / section / f"{key}.py").exists()
            column = f'"{section}",\n' in code and f'Column("{key}"' in code
            file = f'/{span}"' in code
            other = span in BOUNDARIES or f'"{span}"' in code or file or module or column
            if key not in known and not other:
                wrong.append(f"{page}: {span}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_compiles_and_what_it_imports_is_there(page: str) -> None:
    for block in blocks(page):
        if block.language != "python":
            continue
        tree = ast.parse(block.text)
        compile(tree, page, "exec")
        for node in ast.walk(tree):
            for module in (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else []
            ):
                assert module is not None and importlib.util.find_spec(module) is not None, module
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in HEAVY:
                loaded = importlib.import_module(node.module)
                assert all(hasattr(loaded, alias.name) for alias in node.names), block.text


def test_the_readme_is_read_in_five_minutes() -> None:
    assert 600 <= len(PAGES["README.md"].split()) <= 900


def test_every_page_has_its_place_in_the_index() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", PAGES["ops/guides/README.md"])
    assert sorted(linked) == sorted(path.name for path in GUIDES.glob("*.md") if path.name != "README.md")


def test_the_pictures_are_what_their_script_draws() -> None:
    script = runpy.run_path(str(GUIDES / "draw.py"))
    for name, draw in script["PICTURES"].items():
        assert (GUIDES / name).read_text() == draw(), (
            f"draw it again: .venv/bin/python ops/guides/draw.py ({name})"
        )
        assert f"]({name})" in PAGES["ops/guides/concepts.md"]


def test_the_page_of_all_keys_is_what_its_script_writes() -> None:
    script = runpy.run_path(str(GUIDES / "configuration.py"))
    assert (GUIDES / "configuration.md").read_text(encoding="utf-8") == script["page"](), (
        "write it again: .venv/bin/python ops/guides/configuration.py"
    )


def test_concepts_explains_every_word_of_the_house() -> None:
    [listed] = re.findall(r"^- Words: (.*?)\. The same everywhere", PAGES["AGENTS.md"], re.M | re.S)
    words = [
        word
        for part in re.sub(r"\(`\w+`\)", "", listed).replace("\n", " ").split("·")
        for word in part.split(",")
    ]
    marked = " ".join(re.findall(r"\*\*?([^*]+)\*\*?", PAGES["ops/guides/concepts.md"])).lower()
    assert len(words) > 30
    assert [word.strip() for word in words if word.strip() not in marked] == []


def test_the_table_of_keys_says_which_are_process_keys_and_what_they_are() -> None:
    _, _, table = PAGES["ops/guides/operate.md"].partition("## Keys that people touch")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    assert len(rows) > 15
    for keys, defaults, process, _ in rows:
        names = re.findall(r"`([\w.]+)`", keys)
        for name in names:
            section, _, key = name.partition(".")
            assert hasattr(getattr(Config(), section), key), name
            assert is_process_key(name) == (process == "yes"), name
        documented = defaults.split(", ") if len(names) > 1 else [defaults]
        for name, default in zip(names, documented, strict=False):
            section, _, key = name.partition(".")
            value = getattr(getattr(Config(), section), key)
            if re.fullmatch(r"[\d.e-]+", default):
                assert float(default) == value, name
            elif default == "none":
                assert not value, name


def admitted(**files: bytes) -> str:
    """Why a task with these files, added to or instead of good ones, is refused; empty: it is not."""
    good = {
        "task.toml": b"#",
        "instruction.md": b"Say hi.",
        "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt",
    }
    try:
        task = Task.from_files({path: body for path, body in {**good, **files}.items() if body})
        check_admissible(task, SandboxSection())
        task.to_message()
    except ValueError as error:
        return str(error)
    return ""


def test_what_the_guide_on_tasks_says_is_refused_is() -> None:
    assert admitted() == ""
    script = b"echo 1 > /logs/verifier/reward.txt"
    for files in (
        {"instruction.md": b""},
        {"tests/test.sh": b" "},
        {f"environment/files/.git/objects/pack/pack-{'a' * 40}.pack": b"PACK\0\0\0\2"},
        {"environment/files/hint": b"# " + script},
        {"environment/files/../x": b"x"},
        {"environment/notes": b"x"},
        {"environment/Dockerfile": b"FROM debian:12\nRUN true\n"},
        {"environment/Dockerfile": b"FROM alpine\n"},
        {"task.toml": b"[environment]\ndocker_image = 'alpine'\n"},
        {"task.toml": b"[agent]\ntimeout_secs = 3\n"},
        {"environment/files/big": b"x" * (65 << 20)},
        {"instruction.md": b"x" * 600_000},
    ):
        assert admitted(**files), files


def test_the_message_that_the_guide_publishes_by_hand_is_a_task() -> None:
    [block] = [block for block in blocks("ops/guides/publish-tasks.md") if block.info == "by-hand"]
    _, _, subject, body = shlex.split(block.text)
    assert subjects.parse_tasks(subject) == ("first", "general")
    event = decode(body.encode(), None, TaskSubmitted)
    assert event.submission == "hello-1" and Task.from_message(event.task).instruction


def test_failure_classes_are_those_of_the_guide_of_agents() -> None:
    page = PAGES["ops/guides/bring-your-own-agent.md"]
    for name in ("completed", "policy_failure", "infra_failure", "timeout"):
        assert name in set(FailureClass) and f"`{name}`" in page


def test_the_guide_of_agents_names_every_scaffold_that_comes_with_penstock() -> None:
    page = (GUIDES / "bring-your-own-agent.md").read_text(encoding="utf-8")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = project["entry-points"]["penstock.scaffolds"]
    assert [name for name in ours if not re.search(rf"(?<![\w-]){name}(?![\w-])", page)] == []
