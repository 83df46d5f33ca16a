"""The control `leak`: secrets of solution and tests in what the agent can read.

The search gives *suspects*: a secret stands at a place, in some form. Many are innocent: a task whose answer is a word of an input file holds it by
design. A suspect is a leak if the solution earns its reward also without it: then no work leads to the text, and it was only left behind. So a driver
takes the text away (`without`), runs the solution again, and `confirmed` decides.

| form, place | suspect from |
|---|---|
| plain, in a file | `PLAIN` of the lines that the solution adds; a value of its result; `TESTS` of the lines of a file of tests |
| encoded, in a file | `ENCODED` of the lines of any body; any value |
| compiled Python | names and texts of a Python file that no readable one has (`compiled`) |
| in a variable | as in a file, and a value of a file of tests |
| a name of a file, link or empty directory; the target of a link | any value |

`tests/unit/tasks/vetting/test_leak_rates.py` measures both error rates of these thresholds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.needles import Needles
from orchestrator.tasks.vetting.compiled import kept
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.forms import MAX_DECODED, Budget, Form, views
from orchestrator.tasks.vetting.secrets import Body, Source
from sandboxes.base import WORK

PLAIN: Final = 0.5
TESTS: Final = 0.9
ENCODED: Final = 0.2
MIN_BYTES: Final = 24
"""Of matching lines together."""
SHOWN: Final = 60
SHOWN_FILES: Final = 3
_HISTORY: Final = re.compile(r"(^|/)\.(git|hg|svn)/")
_CACHE: Final = re.compile(
    r"(^|/)(__pycache__|\.cache|\.npm|\.pytest_cache|\.mypy_cache|\.ipynb_checkpoints)/|\.pyc$|^/var/cache/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The files and variables that an agent can read. `files`: absolute path → content; `variables`: of its programs; `entries`: absolute path →
    target of a link, or nothing for an empty directory; `unread`: why files are missing; `remedy`: in place of that for an image from which nothing
    can be read; `work`: the work directory, which may also be read as `/app`."""

    files: Mapping[str, bytes]
    variables: Mapping[str, str]
    entries: Mapping[str, str] = field(default_factory=dict)
    unread: str = ""
    remedy: str = ""
    work: str = WORK

    def paths_of(self, name: str) -> tuple[str, ...]:
        """The paths at which a file may be read. `name`: relative to the work directory, or absolute."""
        return (name,) if name.startswith("/") else (f"{self.work}/{name}", f"{WORK}/{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Secrets at one place. `path`: a file, or empty; `variable`: or empty; `named`: the secret is in the path, or for `target` in the target of
    the link there. `body`: whose they are; `texts`: the secrets that match."""

    path: str = ""
    variable: str = ""
    named: bool = False
    target: bool = False
    form: Form
    body: Body
    texts: tuple[bytes, ...]

    @property
    def place(self) -> str:
        return f"${self.variable}" if self.variable else self.path

    @property
    def fault(self) -> TaskFault:
        if self.variable:
            return TaskFault.LEAK_IN_ENV
        if self.named:
            return TaskFault.LEAK_IN_NAME
        if _HISTORY.search(self.path):
            return TaskFault.LEAK_IN_HISTORY
        if _CACHE.search(self.path):
            return TaskFault.LEAK_IN_CACHE
        return TaskFault.LEAK_IN_FILE if self.form is Form.PLAIN else TaskFault.LEAK_ENCODED


@dataclass(frozen=True, slots=True)
class Searched:
    """`cut`: files that decode to more than is read of one."""

    suspects: list[Suspect]
    cut: tuple[str, ...]

    @property
    def note(self) -> str:
        """A sentence on files that were not read; empty: all were."""
        if not self.cut:
            return ""
        shown = ", ".join(map(quoted, self.cut[:SHOWN_FILES])) + (" …" if len(self.cut) > SHOWN_FILES else "")
        return f"of what {shown} decodes to, only {MAX_DECODED >> 20} MB were searched"


def search(bodies: Iterable[Body], readable: Readable) -> Searched:
    """The suspects, at most one for each place and form: that with the most text."""
    bodies = list(bodies)
    needles = Needles(text for body in bodies for text in (*body.lines, *body.values))
    found: list[Suspect] = []
    cut: list[str] = []
    for path, data in readable.files.items():
        found += _named(path, bodies, needles)
        if path.endswith(".pyc"):
            found += _compiled(path, bodies, readable)
        best: dict[Form, Suspect] = {}
        budget = Budget()
        for view in views(data, budget=budget):
            there = needles.within(view.text)
            for body in bodies if there else ():
                if texts := _matching(body, there, view.form):
                    suspect = Suspect(path=path, form=view.form, body=body, texts=texts)
                    if view.form not in best or _weight(suspect) > _weight(best[view.form]):
                        best[view.form] = suspect
        found += best.values()
        if budget.spent:
            cut.append(path)
    for path, target in readable.entries.items():
        found += _named(path, bodies, needles)
        found += (replace(each, path=path, target=True) for each in _named(target, bodies, needles))
    for name, value in readable.variables.items():
        for view in views(value.encode(errors="replace")):
            there = needles.within(view.text)
            holders = [
                Suspect(variable=name, form=view.form, body=body, texts=texts)
                for body in (bodies if there else ())
                if (texts := _matching(body, there, view.form) or _values(body, there))
            ]
            if holders:
                found.append(max(holders, key=_weight))
                break
    return Searched(found, tuple(cut))


def _named(path: str, bodies: list[Body], needles: Needles) -> Iterator[Suspect]:
    """A path that holds a value, unless the solution writes files of such names."""
    there = needles.within(path.encode(errors="replace"))
    for body in bodies if there else ():
        texts = _values(body, there)
        if texts and body.source in (Source.WORK, Source.ANSWER, Source.SOLUTION):
            yield Suspect(path=path, named=True, form=Form.PLAIN, body=body, texts=texts)
            return


def _compiled(path: str, bodies: list[Body], readable: Readable) -> Iterator[Suspect]:
    """A module that was compiled from a hidden file. What a readable source has as well shows nothing."""
    for body in bodies:
        if not body.names or not kept(body.names, readable.files[path]):
            continue
        sources = [data for other, data in readable.files.items() if other.endswith(".py")]
        alone = frozenset(name for name in body.names if not any(name in data for data in sources))
        texts = tuple(sorted(kept(alone, readable.files[path])))
        if sum(map(len, texts)) >= MIN_BYTES:
            yield Suspect(path=path, form=Form.PLAIN, body=body, texts=texts)
            return


def _matching(body: Body, there: Set[bytes], form: Form) -> tuple[bytes, ...]:
    """The secrets of a body in a text that holds those of `there`, if they are enough."""
    lines = tuple(sorted(body.lines & there))
    matched = sum(map(len, lines))
    share = ENCODED if form is not Form.PLAIN else TESTS if body.source is Source.TESTS else PLAIN
    if matched >= MIN_BYTES and matched >= share * body.size:
        return lines
    if form is Form.PLAIN and body.source is Source.TESTS:
        return ()  # tests may compare with what an input file says
    return _values(body, there)


def _values(body: Body, there: Set[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(body.values & there))


def _weight(suspect: Suspect) -> int:
    return sum(map(len, suspect.texts))


def without(data: bytes, suspect: Suspect) -> bytes:
    """A file without a suspect's secrets: plain ones as x of the same length, else an empty file."""
    if suspect.form is not Form.PLAIN:
        return b""
    for text in sorted(suspect.texts, key=len, reverse=True):
        data = data.replace(text, b"x" * len(text))
    return data


def confirmed(suspects: Iterable[Suspect]) -> list[Finding]:
    """Findings for suspects without which the solution earns the same. One for each place."""
    found: dict[str, Finding] = {}
    for suspect in suspects:
        if suspect.place not in found:
            found[suspect.place] = Finding(
                control=Control.LEAK,
                fault=suspect.fault,
                where=suspect.place,
                says=_says(suspect),
                remedy=_IN_FILE if suspect.fault is TaskFault.LEAK_IN_FILE else "",
            )
    return list(found.values())


_IN_FILE: Final = (
    "remove it from environment/; if the agent is to find it there, let solution/solve.sh read it from there"
)


def _says(suspect: Suspect) -> str:
    whose = {
        Source.TESTS: f"of the hidden {suspect.body.name}",
        Source.SOLUTION: f"of {suspect.body.name}",
        Source.WORK: f"that the solution writes into {suspect.body.name}",
        Source.ANSWER: "of the solution's answer",
    }[suspect.body.source]
    how = "" if suspect.form is Form.PLAIN else f" ({suspect.form.value})"
    name = "the target of the link " if suspect.target else "the name of "
    where = name + suspect.path if suspect.named else suspect.place
    longest = max(suspect.texts, key=len).decode(errors="replace")
    text = longest if len(longest) <= SHOWN else f"{longest[:SHOWN]}…"
    return f"{where} holds text {whose}{how}: {text!r}"
