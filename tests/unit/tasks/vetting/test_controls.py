"""The controls as functions: rewards, times and texts in, named faults out."""

import base64
import bz2
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.probes import PROBES, Needs, ProbeKind, probe
from orchestrator.tasks.resources import granted
from orchestrator.tasks.settings import parse_settings
from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting import forms
from orchestrator.tasks.vetting.budget import for_probes, squeeze_findings, squeezed, time_findings
from orchestrator.tasks.vetting.conditions import AS_WRITTEN, Condition, in_order, plan, varies
from orchestrator.tasks.vetting.findings import REMEDIES, TaskFault
from orchestrator.tasks.vetting.forms import Form, views
from orchestrator.tasks.vetting.instruction import instruction_findings
from orchestrator.tasks.vetting.leaks import Readable, Suspect, confirmed, search, without
from orchestrator.tasks.vetting.outcomes import Outcome, flaky_findings, nothing_findings, oracle_findings
from orchestrator.tasks.vetting.secrets import Body, Solved, Source, secrets_of
from orchestrator.tasks.vetting.tamper import finding_of, remedy_of
from orchestrator.vetting.leak import MAX_PLACES, is_copy, reads_history, untried_note
from orchestrator.vetting.readable import large_note
from orchestrator.vetting.task import provider_of
from orchestrator.vetting.trials import Trials
from sandboxes.base import File

SECRET = b"word-7c41d09be2f8"


def runs(*rewards: float | None, reason: str = "") -> list[Outcome]:
    return [Outcome(reward=reward, reason=reason) for reward in rewards]


def test_every_fault_has_a_remedy() -> None:
    without = [fault.name for fault in TaskFault if not REMEDIES.get(fault)]
    assert without == [], "write their remedies into REMEDIES of orchestrator/tasks/vetting/findings.py"


def test_a_solution_earns_the_maximum_each_time() -> None:
    assert oracle_findings(runs(1.0, 1.0, 1.0), 1.0) == oracle_findings(runs(0.8, 0.8), 0.8) == []
    (half,) = oracle_findings(runs(0.5, 0.5, 0.5, reason="late"), 1.0)
    assert half.fault is TaskFault.ORACLE_FAILS and half.says == "the solution earns 0.5 and not 1: late"
    (none,) = oracle_findings(runs(None, None, reason="ended by signal 9"), 1.0)
    assert none.fault is TaskFault.ORACLE_HAS_NO_VERDICT and "signal 9" in none.says
    assert oracle_findings(runs(1.0, 0.0), 1.0) == [], "that is the fault of chance"


@pytest.mark.parametrize(
    "others", [(0.9, 0.9), (0.9, 0.9 - 1e-15), (0.9, 0.9 - 1e-8), (0.9 - 1e-7, 0.9 - 1e-7)]
)
def test_a_solution_holds_earns_and_stays_the_same_by_one_measure(others: tuple[float, float]) -> None:
    plain = runs(0.3 + 0.6, *others)
    earned = all(same(run.reward, 0.9) for run in plain)
    found = oracle_findings(plain, 0.9) + flaky_findings("the solution", plain, [])
    assert earned is (found == []), "a control that needs the maximum is left out only next to a finding"
    assert (squeeze_findings(plain[-1], 0.9, SandboxSection()) == []) is earned
    sums = flaky_findings("the solution", runs(0.9), runs(0.3 + 0.6, 0.9 - 1e-15))
    assert sums == []


def test_nothing_earns_0_each_time() -> None:
    assert nothing_findings(runs(0.0, 0.0)) == nothing_findings(runs(0.0, 1.0)) == []
    assert [f.fault for f in nothing_findings(runs(0.2, 0.2))] == [TaskFault.NOTHING_PAYS]
    assert [f.fault for f in nothing_findings(runs(None, None))] == [TaskFault.NOTHING_HAS_NO_VERDICT]


def test_a_difference_is_named_by_the_condition_that_makes_it() -> None:
    zone = Condition(name="TZ=Etc/GMT-14", blames=TaskFault.CLOCK_DEPENDENT)
    draw = Condition(name="draws 1", blames=TaskFault.DRAW_DEPENDENT)
    varied = [
        Outcome(condition=draw, reward=1.0),
        Outcome(condition=zone, reward=0.0),
        Outcome(condition=zone, reward=None),
    ]
    (found,) = flaky_findings("the solution", runs(1.0, 1.0), varied)
    assert found.fault is TaskFault.CLOCK_DEPENDENT and found.where == "TZ=Etc/GMT-14"
    assert found.says == "the solution earns 1, but 0 with TZ=Etc/GMT-14"
    (chance,) = flaky_findings("the solution", runs(1.0, None, 1.0), varied)
    assert (chance.fault, chance.says) == (
        TaskFault.RANDOM,
        "the solution earns 1, no verdict, 1 under the same conditions",
    )
    assert flaky_findings("the solution", runs(1.0), runs(1.0)) == flaky_findings("x", [], varied) == []


def test_the_plan_varies_what_the_task_and_its_sandboxes_let_vary() -> None:
    tests = Bundle.of({"test.sh": b"python3 -m pytest -q"}).files
    assert varies(plan(2, Bundle.of({"test.sh": b"true"}).files)) == "draws, time zone"
    every = plan(3, tests, "/usr/lib/faketime.so")
    assert varies(every) == "draws, order of tests, time zone, clock" and len(every) == 9
    assert len({(c.seed, c.order, tuple(c.env.items())) for c in every}) == 9
    changed = in_order({**tests, "conftest.py": File(b"import os\n")}, 2)["conftest.py"].data.decode()
    assert changed.startswith("import os\n") and "Random(2).shuffle(items)" in changed
    compile(changed, "conftest.py", "exec")
    assert in_order(tests, 0) == tests


def test_what_the_task_pins_is_not_varied() -> None:
    tests = Bundle.of({"test.sh": b"true"}).files
    assert {c.name for c in plan(2, tests, pinned=["TZ"])} == {"draws 1", "draws 2"}
    later = [c.env for c in plan(1, tests, "/usr/lib/faketime.so", ["TZ"]) if c.env]
    assert [("TZ" in env, "FAKETIME" in env) for env in later] == [(False, True)]
    with_library = [c.env for c in plan(1, tests, "/usr/lib/faketime.so", ["LD_PRELOAD"]) if c.env]
    assert [("TZ" in env, "LD_PRELOAD" in env) for env in with_library] == [(True, False)]
    assert varies(plan(1, tests, pinned=["TZ"]), ["TZ"]) == "draws; time zone pinned by the task"


OLD_PLUGGY = """\
import pytest
hookimpl = pytest.hookimpl

def before_1_0(*given, **named):
    if "specname" in named:
        raise TypeError("__call__() got an unexpected keyword argument 'specname'")
    return hookimpl(*given, **named)

pytest.hookimpl = before_1_0
"""
OWN_HOOKS = """
def pytest_configure(config):
    print("OWN configure")

def pytest_collection_modifyitems(items):
    print("OWN", *[item.name for item in items])
"""


@pytest.mark.parametrize("own", ["", OWN_HOOKS])
@pytest.mark.parametrize("before", ["", OLD_PLUGGY])
@pytest.mark.parametrize(("order", "ran"), [(AS_WRITTEN, ["a", "b"]), (1, ["b", "a"])])
def test_pytest_of_any_age_runs_the_tests_in_the_order_of_the_hook(
    tmp_path: Path, before: str, own: str, order: int, ran: list[str]
) -> None:
    tests = in_order({"conftest.py": File((before + own).encode())}, order)
    (tmp_path / "conftest.py").write_bytes(tests["conftest.py"].data)
    (tmp_path / "test_it.py").write_text("def test_a(): print('RAN a')\n\n\ndef test_b(): print('RAN b')\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            "test_it.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    assert re.findall(r"RAN (\w)", done.stdout) == ran
    assert re.findall("OWN .*", done.stdout) == (["OWN configure", "OWN test_a test_b"] if own else [])


def test_time_needs_a_reserve() -> None:
    settings = parse_settings("[agent]\ntimeout_sec = 10.0\n[verifier]\ntimeout_sec = 4.0\n")
    assert time_findings([Outcome(reward=1.0, agent_s=7.4, tests_s=2.9)], settings) == []
    slow = [Outcome(reward=1.0, agent_s=7.6, tests_s=1.0), Outcome(reward=1.0, agent_s=1.0, tests_s=3.1)]
    assert [f.fault for f in time_findings(slow, settings)] == [TaskFault.SLOW_ORACLE, TaskFault.SLOW_TESTS]


def test_the_limits_without_the_reserve_are_three_quarters_of_the_declared_ones() -> None:
    section = SandboxSection(memory_mb=1000, disk_mb=400, processes=8)
    wanted = parse_settings('[environment]\nmemory_mb = 200\nstorage = "1G"\n')
    limits = granted(section, wanted.environment)
    assert (limits.memory_mb, limits.disk_mb) == (200, 400)
    small = squeezed(limits)
    assert (small.memory_mb, small.disk_mb, small.processes) == (150, 300, 6)
    least = SandboxSection(memory_mb=64, disk_mb=16, processes=4, cpu_s=9)
    probes = for_probes(limits, wanted.environment, least)
    assert (probes.memory_mb, probes.disk_mb, probes.processes, probes.cpu_s) == (200, 400, 4, 9)
    assert for_probes(section, {}, least, placed_mb=30).disk_mb == 16 + 60, "what lies there has room twice"
    assert squeeze_findings(Outcome(reward=0.8), 0.8, limits) == []
    (tight,) = squeeze_findings(Outcome(reward=None, reason="memory"), 1.0, limits)
    assert tight.fault is TaskFault.TIGHT_LIMITS and "memory (200 MB)" in tight.says


def test_a_task_that_asks_for_more_than_the_usual_gets_it_up_to_the_maximum() -> None:
    section = SandboxSection(memory_mb=1000, max_memory_mb=3000)
    assert granted(section, {"memory_mb": 2000}).memory_mb == 2000
    assert squeezed(granted(section, {"memory": "9G"})).memory_mb == 2250


def test_names_that_only_the_tests_know_are_reported() -> None:
    tests = Bundle.of(
        {
            "test.sh": b"python3 /tests/check.py; grep -q x /tmp/a.txt; cat out.txt given.csv\n# not this.txt\n",
            "check.py": b'import json\ndata = json.load(open("report.json"))\nassert data["total_sum"] == 3\n',
        }
    ).files
    found = instruction_findings("Write out.txt.", tests, {"/app/given.csv": b"1"})
    assert {(f.fault, f.where) for f in found} == {
        (TaskFault.UNNAMED, "report.json"),
        (TaskFault.UNNAMED, "total_sum"),
        (TaskFault.UNNAMED, "JSON"),
    }
    assert not any(f.counts for f in found)
    stated = "Write out.txt and report.json (JSON with total_sum)."
    assert instruction_findings(stated, tests, {"/app/given.csv": b"1"}) == []


def pack(*blobs: bytes) -> bytes:
    """A pack of small blobs."""
    entries = b"".join(bytes([0xB0 | len(each) & 15, len(each) >> 4]) + zlib.compress(each) for each in blobs)
    return b"PACK\0\0\0\2" + len(blobs).to_bytes(4) + entries + bytes(20)


def tarred(text: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        member = tarfile.TarInfo("a/b")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


def dumped(*command: str) -> bytes:
    """A dump of some lines and the secret, by a program of the system; its characters do not show the secret whole."""
    given = b"lines before: " + SECRET
    lines = [given[at : at + 16] for at in range(0, len(given), 16)]
    if command[0] == "xxd":
        words = (
            b" ".join(line[at : at + 2].hex().encode() for at in range(0, len(line), 2)) for line in lines
        )
        return b"".join(b"%08x: %-40s %s\n" % (16 * n, row, lines[n]) for n, row in enumerate(words))
    rows = (line.hex(" ").encode() for line in lines)
    if command[0] == "hexdump":
        return b"".join(
            b"%08x  %b  |%b|\n" % (16 * n, row[:23] + b" " + row[23:], lines[n]) for n, row in enumerate(rows)
        )
    return b"".join(b"%07o %b\n" % (16 * n, row) for n, row in enumerate(rows))


FORMS = {
    "plain": (b"x" + SECRET + b"y", Form.PLAIN),
    "reversed": (SECRET[::-1], Form.REVERSED),
    "base64": (b"v = " + base64.b64encode(SECRET), Form.BASE64),
    "url-safe base64": (base64.urlsafe_b64encode(b"\xff\xfe the word: " + SECRET), Form.BASE64),
    "lines of base64": (base64.encodebytes(b"lines " * 20 + SECRET), Form.BASE64),
    "hex": (SECRET.hex().upper().encode(), Form.HEX),
    "hex with spaces": (b" ".join(b"%02x" % each for each in SECRET), Form.HEX),
    "escapes": (b"".join(b"\\x%02x" % each for each in SECRET), Form.HEX),
    "hex of C": (b"char v[] = {" + b", ".join(b"0x%02x" % each for each in SECRET) + b"};", Form.HEX),
    "hex of C in lines": (b",\n  ".join(b"0x%02X" % each for each in SECRET), Form.HEX),
    "xxd": (dumped("xxd"), Form.HEX),
    "hexdump -C": (dumped("hexdump", "-C"), Form.HEX),
    "od": (dumped("od", "-t", "x1"), Form.HEX),
    "gzip": (gzip.compress(SECRET, mtime=0), Form.COMPRESSED),
    "gzip behind a script": (
        b"#!/bin/sh\ntail -n +3 $0 | zcat\nexit\n" + gzip.compress(SECRET),
        Form.COMPRESSED,
    ),
    "xz behind a script": (b"#!/bin/sh\n" + lzma.compress(SECRET), Form.COMPRESSED),
    "bzip2": (bz2.compress(SECRET), Form.COMPRESSED),
    "zlib": (zlib.compress(SECRET), Form.COMPRESSED),
    "git pack": (pack(SECRET), Form.COMPRESSED),
    "tar, gzip": (tarred(b"lines before it\n" + SECRET), Form.COMPRESSED),
    "damaged git pack": (b"PACK\0\0\0\2" + b"\x90\x01" + zlib.compress(b"blob\0" + SECRET), Form.COMPRESSED),
    "second member of gzip": (gzip.compress(b"log\n") + gzip.compress(SECRET), Form.COMPRESSED),
    "UTF-16": ("the word: \u00e4 ".encode("utf-16") + SECRET.decode().encode("utf-16-le"), Form.UTF16),
    "UTF-16, big endian": (SECRET.decode().encode("utf-16-be"), Form.UTF16),
    "base64 in two literals": (
        b'x = ("%b"\n     "%b")' % (base64.b64encode(SECRET)[:10], base64.b64encode(SECRET)[10:]),
        Form.BASE64,
    ),
    "base64, reversed": (base64.b64encode(b"the word: " + SECRET)[::-1], Form.REVERSED),
    "hex, reversed": (b"id: " + SECRET.hex().encode()[::-1], Form.REVERSED),
    "gzip, reversed": (gzip.compress(SECRET, mtime=0)[::-1], Form.REVERSED),
    "gzip, base64, reversed": (base64.b64encode(gzip.compress(SECRET, mtime=0))[::-1], Form.REVERSED),
    "reversed, gzip, base64": (base64.b64encode(gzip.compress(SECRET[::-1], mtime=0)), Form.BASE64),
}


def zipped(text: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", text)
    return out.getvalue()


@pytest.mark.parametrize(
    "compress", [gzip.compress, zlib.compress, bz2.compress, lzma.compress, zipped, tarred]
)
@pytest.mark.parametrize("before", [(1 << 20) - 9, 3 << 20])
def test_a_long_text_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, compress: Callable[[bytes], bytes], before: int
) -> None:
    monkeypatch.setattr(forms, "MAX_BYTES", 1 << 20)
    data = compress((b"row,1,2,3\n" * (before // 10 + 1))[:before] + SECRET + b"\n" * (1 << 19))
    body = Body(source=Source.WORK, name="out.txt", lines=frozenset([SECRET]), values=frozenset([SECRET]))
    found = search([body], Readable(files={"/app/x": data}, variables={}))
    assert [suspect.form for suspect in found.suspects] == [Form.COMPRESSED] and not found.cut


@pytest.mark.parametrize(("data", "form"), FORMS.values(), ids=FORMS)
def test_a_secret_is_found_in_each_form(data: bytes, form: Form) -> None:
    assert form in {view.form for view in views(data) if SECRET in view.text}


def test_suspect_places_that_were_not_tried_are_named() -> None:
    places = [f"/app/{n}.txt" for n in range(MAX_PLACES + 5)]
    assert untried_note(places[:MAX_PLACES]) == ""
    says = untried_note(places)
    assert says == (
        "only 12 of 17 suspect places were tried one by one, not '/app/12.txt', '/app/13.txt', '/app/14.txt' …"
    )


def test_files_that_are_too_large_to_be_searched_are_named() -> None:
    files = {
        "/app/a.bin": File(bytes((8 << 20) + 1)),
        "/app/b.bin": File(bytes(8 << 20)),
        "/app/c.pack": File(bytes(9 << 20)),
    }
    assert large_note(Environment(files=files)) == (
        "files above 8 MB (packs of git: 64 MB) were not searched: '/app/a.bin'"
    )
    assert large_note(Environment(files={})) == ""


def body(source: Source = Source.WORK) -> Body:
    return Body(source=source, name="out.txt", lines=frozenset(), values=frozenset({SECRET}))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/app/notes.txt", TaskFault.LEAK_IN_FILE),
        ("/app/__pycache__/a.cpython-311.pyc", TaskFault.LEAK_IN_CACHE),
        ("/srv/.cache/pip/x", TaskFault.LEAK_IN_CACHE),
        ("/srv/project/.git/objects/pack/a.pack", TaskFault.LEAK_IN_HISTORY),
    ],
)
def test_a_leak_is_named_by_its_place(path: str, fault: TaskFault) -> None:
    (suspect,) = search([body()], Readable(files={path: b"it is " + SECRET}, variables={})).suspects
    (finding,) = confirmed([suspect])
    assert (finding.fault, finding.where) == (fault, path) and "word-7c41d09be2f8" in finding.says
    assert without(b"it is " + SECRET, suspect) == b"it is xxxxxxxxxxxxxxxxx"


SCRIPT = "awk -F, '{ sum += $2 } END { print sum }' sales.csv > total.txt"


@pytest.mark.parametrize(
    ("value", "leaks"),
    [
        (SCRIPT, True),
        (f"set -e; {SCRIPT}; exit 0", True),
        (base64.b64encode(f"#!/bin/bash\n{SCRIPT}\n".encode()).decode(), True),
        (SCRIPT.encode().hex(), True),
        ("awk -F, '{ print $2 }' sales.csv", False),
        ("sales.csv:total.txt:/usr/local/bin:/usr/bin", False),
    ],
)
def test_a_solution_without_a_telling_word_is_found_in_a_variable(value: str, leaks: bool) -> None:
    files = {"task.toml": b"", "instruction.md": b"sum up", "tests/test.sh": b"true"}
    task = Task.from_files({**files, "solution/solve.sh": f"#!/bin/bash\n{SCRIPT}\n".encode()})
    found = search(secrets_of(task, Solved()), Readable(files={}, variables={"HINT": value})).suspects
    assert [suspect.fault for suspect in found] == [TaskFault.LEAK_IN_ENV] * leaks


@pytest.mark.parametrize(
    ("source", "lines", "copy"),
    [
        (Source.SOLUTION, 3, True),
        (Source.TESTS, 3, True),
        (Source.SOLUTION, 2, False),
        (Source.WORK, 3, False),
        (Source.SOLUTION, 0, False),
    ],
)
def test_lines_of_the_solution_in_a_read_only_file_of_an_image_are_a_copy(
    source: Source, lines: int, copy: bool
) -> None:
    """Work that is there as well may be its source, and one or two lines may stand in a manual."""
    texts = [b"the line number %d" % number for number in range(lines)]
    held = Body(source=source, name="x", lines=frozenset(texts), values=frozenset({SECRET}))
    suspect = Suspect(path="/usr/share/x", form=Form.PLAIN, body=held, texts=(*texts, SECRET))
    assert is_copy(suspect) is copy


def test_variables_and_names_of_files_are_searched() -> None:
    shown = Readable(
        files={f"/app/{SECRET.decode()}.lock": b""}, variables={"HINT": SECRET.hex(), "PATH": "/bin"}
    )
    found = search([body()], shown).suspects
    assert {(s.fault, s.place) for s in found} == {
        (TaskFault.LEAK_IN_NAME, "/app/word-7c41d09be2f8.lock"),
        (TaskFault.LEAK_IN_ENV, "$HINT"),
    }


@pytest.mark.parametrize(
    ("path", "target", "says"),
    [
        (f"/app/cache/{SECRET.decode()}", "", "the name of /app/cache/word-7c41d09be2f8 holds"),
        (f"/app/{SECRET.decode()}", "x", "the name of /app/word-7c41d09be2f8 holds"),
        ("/app/latest", f"../{SECRET.decode()}", "the target of the link /app/latest holds"),
    ],
)
def test_names_of_empty_directories_and_links_and_targets_of_links_are_searched(
    path: str, target: str, says: str
) -> None:
    found = search([body()], Readable(files={}, variables={}, entries={path: target})).suspects
    (finding,) = confirmed(found)
    assert (finding.fault, finding.where) == (TaskFault.LEAK_IN_NAME, path) and says in finding.says


def test_values_of_tests_are_no_secret_in_plain_files_but_in_variables() -> None:
    shown = Readable(files={"/app/in.txt": SECRET}, variables={"A": SECRET.decode()})
    assert [s.place for s in search([body(Source.TESTS)], shown).suspects] == ["$A"]
    encoded = Suspect(path="/app/x", form=Form.HEX, body=body(), texts=(SECRET,))
    assert without(b"anything", encoded) == b""


def test_secrets_are_what_the_solution_adds_and_the_instruction_does_not_say() -> None:
    files = {
        "task.toml": b"",
        "instruction.md": b"write the value given-instruction-42ab",
        "tests/test.sh": b"want=hidden-99ff-aa11\n",
        "solution/solve.sh": b"cat > a.py <<'END'\ndef first_function():\n    return compute_second(3)\nEND\necho given-instruction-42ab > out\n",
    }
    solved = Solved(
        written={"a.py": b"def first_function():\n    return compute_second(3)\n"},
        before={"/app/a.py": b"def first_function():\n    pass\n"},
    )
    bodies = {each.source: each for each in secrets_of(Task.from_files(files), solved)}
    assert bodies[Source.TESTS].values == {b"hidden-99ff-aa11"}
    assert bodies[Source.WORK].lines == {b"return compute_second(3)"}
    assert b"def first_function():" not in bodies[Source.SOLUTION].lines
    assert not any(b"given-i" in value for each in bodies.values() for value in each.values)


def test_a_probe_that_earns_leaks_or_breaks_the_verdict_is_a_finding() -> None:
    guess = probe("guesses")
    assert finding_of(guess, 0.0, "", leaked=False) is None
    paid, leaked, none = (
        finding_of(guess, 1.0, "", leaked=True),
        finding_of(guess, 0.0, "", leaked=True),
        finding_of(guess, None, "signal 9", leaked=False),
    )
    assert paid and paid.fault is TaskFault.PROBE_PAYS and paid.where == "guesses" and "earns 1" in paid.says
    assert leaked and leaked.fault is TaskFault.PROBE_LEAKS
    assert none and none.fault is TaskFault.PROBE_HAS_NO_VERDICT and "signal 9" in none.says


def test_probes_whose_program_is_run_have_a_remedy() -> None:
    assert all(remedy_of(each) for each in PROBES if each.needs is Needs.PROGRAM or each.program)
    assert {ProbeKind.LONG_ANSWER, ProbeKind.PATTERN, ProbeKind.CLAIM} <= {
        each.kind for each in PROBES if remedy_of(each)
    }


def test_the_guide_lists_each_fault_with_its_remedy() -> None:
    guide = (Path(__file__).resolve().parents[4] / "ops/guides/vet-tasks.md").read_text()
    _, _, rest = guide.partition("## Faults and remedies")
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", rest.partition("## Require")[0], re.M)
    assert rows == [(fault.value, remedy) for fault, remedy in REMEDIES.items()], (
        "ops/guides/vet-tasks.md, Faults and remedies: write a row for each of REMEDIES, in their order"
    )


def test_the_sandboxes_of_a_run_have_its_images_and_a_base_that_the_system_cannot_serve_is_built() -> None:
    section = SandboxSection(images=ImagesSection(directory="/srv/images"))
    provider = provider_of(section)
    assert provider.containers and not provider_of(SandboxSection()).containers
    files = {"task.toml": b"", "instruction.md": b"do", "tests/test.sh": b"true"}
    for base, built in (("alpine:3", True), ("debian:12", False)):
        task = Task.from_files({**files, "environment/Dockerfile": f"FROM {base}\nWORKDIR /app\n".encode()})
        trials = Trials(task, provider, section=section)
        assert (trials.run.pristine.build is not None) is built, base


def test_what_git_notes_about_a_commit_is_not_an_answer() -> None:
    task = Task.from_files({"task.toml": b"", "instruction.md": b"do", "tests/test.sh": b"true"})
    written = {".git/logs/HEAD": b"c78279d45e7aa0ac4f79f50cfc170d9a16d4faa5 a commit", "out": SECRET}
    found = secrets_of(task, Solved(written=written))
    assert [each.name for each in found if each.source is Source.WORK] == ["out"]


@pytest.mark.parametrize(
    ("script", "reads"),
    [
        (b"git log -S word | head", True),
        (b"git -C /app show HEAD~3:a", True),
        (b"python3 -c \"subprocess.run(['git', 'checkout', 'HEAD~1'])\"", True),
        (b"git add -A && git commit -qm 'show it'", False),
        (b"sed -i s/a/b/ x; git status", False),
        (b"echo show log", False),
    ],
)
def test_a_solution_reads_the_history_or_only_adds_to_it(script: bytes, reads: bool) -> None:
    files = {"task.toml": b"", "instruction.md": b"do", "tests/test.sh": b"true", "solution/solve.sh": script}
    assert reads_history(Task.from_files(files)) is reads
