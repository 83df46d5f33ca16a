"""Tests of a script that are as many as the lines or files of the answer: where it has none, or one right one, all of them pass."""

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.silence import Silence
from orchestrator.tasks.traps.somewhere import decides, is_wanted
from orchestrator.tasks.traps.transforms import data_files
from orchestrator.tasks.traps.tree import above, every, is_safe, operands, options, plain, source_of

_COUNTS: Final = re.compile(r"\+\+|\+=|\$\(\(|\blet\b|\bexpr\b|\bcontinue\b|\bdeclare\b")
_FALSE: Final = re.compile(r"""["']?(?:0|false|no|fail(?:ed)?)["']?""", re.IGNORECASE)
_TRUE: Final = re.compile(r"""["']?(?:1|true|yes)["']?""", re.IGNORECASE)
_BAD: Final = re.compile(r"(?:bad|wrong|fail\w*|err\w*|mis\w*|diff\w*)", re.IGNORECASE)
_OUTPUT: Final = re.compile(r"\s*[1&]?>(?!&|\s*/dev/null)")
_TURNED: Final = re.compile(r"^\s*!|\s(?:!=|-ne)\s|^\[\[?\s+!\s")


class AsMany:
    """The loops and comparisons of one script that go as far as the answer does."""

    def __init__(self, root: Node, text: AgentText, silence: Silence) -> None:
        self._text, self._silence, self._nodes = text, silence, [*every(root)]

    def loop_passes(self, loop: Node) -> bool:
        """`while read -r a b; do [ "$b" = "$(reference "$a")" ] || ok=0; done < out`, where nothing else looks at the answer."""
        body = loop.named_children[-1] if loop.named_children else loop
        names = self._turns(loop)
        if body.type != "do_group" or not names or _is_read(loop):
            return False
        failures = [n for n in every(body) if _is_failure(n)]
        if not failures or self._keeps(body, names, failures) or _COUNTS.search(source_of(body)):
            return False
        return self._succeeds_outside(body) and not self._silence.looks_outside(loop, self._places(loop))

    def _places(self, loop: Node) -> set[str]:
        """The names of the directories whose files a loop goes through: `out` for `for f in /app/out/*.txt` and `for f in $(ls out)`."""
        found = (path for part in self._sources(loop) for path in self._silence.files_of(part))
        return {_directory(path).rpartition("/")[2] for path in found}

    def _sources(self, loop: Node) -> list[Node]:
        """The parts of the script that give a loop its turns."""
        if loop.type == "for_statement":
            return loop.named_children[1:-1]
        read = [(n, words(n)) for n in every(loop.named_children[0]) if n.type == "command"]
        return [fed for n, found in read if found and (fed := self._text.read_in(n, found)) is not None]

    def _succeeds_outside(self, body: Node) -> bool:
        """Whether the script makes the tests succeed in another place than in the body of a loop: `ok=1`."""
        return any(not body.start_byte <= at < body.end_byte for at in self._successes)

    def _turns(self, loop: Node) -> set[str]:
        """The variables of a loop whose turns are the agent's; none for another loop."""
        if loop.type == "for_statement":
            given = loop.named_children[1:-1]
            own = all(
                self._text.carries(v)
                or (v.type != "raw_string" and "*" in source_of(v) and self._text.unsafe(v))
                for v in given
            )
            expected = any(map(_holds_expected, given))
            return {source_of(loop.named_children[0])} if given and own and not expected else set()
        condition = loop.named_children[0]
        if source_of(loop).startswith("until"):
            return set()
        read = [
            (n, found) for n in every(condition) if n.type == "command" and plain((found := words(n) or [n])[0]) == "read"
        ]  # fmt: skip
        inner = condition.named_children[0] if condition.type == "redirected_statement" else condition
        joined = inner.type == "list" and [c.type for c in inner.children if not c.is_named] == ["&&"]
        if not read or (len(read) > 1 and not (joined and len(read) == 2)):
            return set()
        fed = [self._text.read_in(n, found) for n, found in read]
        if not any(fed) or any(one is not None and _holds_expected(one) for one in fed):
            return set()
        return {plain(w) for _, found in read for w in operands(found[1:])}

    def _keeps(self, body: Node, names: set[str], failures: list[Node]) -> bool:
        """Whether a loop does more than to fail: it counts, writes or sets something that the script reads later."""
        flags = {source_of(n.named_children[0]) for n in failures if n.type == "variable_assignment"}
        kept = set(names)
        for node in every(body):
            if node in failures or source_of(node).startswith(("break", "exit", "return")):
                continue
            if decides(node) or (node.type == "file_redirect" and _writes(node)):
                return True
            if node.type == "variable_assignment":
                kept.add(source_of(node.named_children[0]).partition("[")[0])
        return any(self._last_uses.get(name, -1) >= body.end_byte for name in kept - flags)

    @cached_property
    def _successes(self) -> list[int]:
        """The first and the last place at which the script makes the tests succeed."""
        found = [n.start_byte for n in self._nodes if not _is_failure(n) and decides(n)]
        return [found[0], found[-1]] if found else []

    @cached_property
    def _last_uses(self) -> dict[str, int]:
        """The last place of each variable."""
        return {source_of(n): n.start_byte for n in self._nodes if n.type == "variable_name"}

    @cached_property
    def _values(self) -> dict[str, list[Node]]:
        """The values that the script sets, by variable."""
        found: dict[str, list[Node]] = {}
        for n in self._nodes:
            if n.type == "variable_assignment" and len(n.named_children) > 1:
                found.setdefault(source_of(n.named_children[0]), []).append(n.named_children[1])
        return found

    def count_passes(self, test: Node) -> bool:
        """`[ "$(join out /tests/want | wc -l)" = "$(wc -l < out)" ]`: as many right lines as the answer has."""
        found = next((n for n in every(test) if n.type == "binary_expression"), None)
        if found is None or len(found.children) != 3:
            return False
        left, sign, right = found.children
        signs = {"=": True, "==": True, "-eq": True, "!=": False, "-ne": False}
        holds = signs.get(source_of(sign))
        if holds is None or not is_wanted(test, holds=holds):
            return False
        pairs = ((left, right), (right, left))
        alike = any(self._counts_common(a) and self._counts_answer(b) for a, b in pairs)
        return alike and not self._silence.looks_outside(test)

    def _commands(self, side: Node) -> Iterator[tuple[str, list[Node]]]:
        """The commands whose output is one side of a comparison, also by a variable that is set once."""
        name = re.fullmatch(r"\"?\$\{?(\w+)\}?\"?", source_of(side))
        values = [] if name is None else self._values.get(name[1], [])
        for node in every(values[0] if len(values) == 1 else side):
            if node.type == "command" and (found := words(node)):
                yield self._text.name(found[0]), found[1:]

    def _counts_common(self, side: Node) -> bool:
        for name, arguments in self._commands(side):
            letters = options(arguments)
            if name == "join" or (name == "comm" and {"1", "2"} <= {*letters}):
                own = [bool(self._silence.paths_of(file)) for file in operands(arguments)]
                return any(own) and not all(own)
        return False

    def _counts_answer(self, side: Node) -> bool:
        """`$(wc -l < out)`, and nothing of the tests."""
        given = [*self._commands(side)]
        plainly = {name for name, _ in given} <= {"wc", "cat", "sort", "tr", "grep", "uniq"}
        files = [plain(a) for name, arguments in given for a in data_files(name, arguments)]
        counts = any(name == "wc" for name, _ in given) and not any(map(is_safe, files))
        return plainly and counts and bool(self._silence.files_of(side))


def _directory(path: str) -> str:
    """`out` for `out/*.txt` and for `out`."""
    return path.partition("*")[0].rpartition("/")[0] if "*" in path else path.rstrip("/")


def _holds_expected(node: Node) -> bool:
    """Whether a part of the script names a file of the tests: `paste out /tests/want` has the lines of both."""
    return "/tests" in source_of(node)


def _is_failure(node: Node) -> bool:
    """`ok=0`, `bad=1`, `exit 1`, `… || exit 0`, `echo 0 > /logs/verifier/reward.txt`."""
    if node.type == "variable_assignment" and len(node.named_children) > 1:
        name, value = map(source_of, node.named_children[:2])
        return (_TRUE if _BAD.fullmatch(name) else _FALSE).fullmatch(value) is not None
    found = [plain(word) for word in words(node)] if node.type == "command" else []
    if found[:1] in (["exit"], ["return"]):
        return found[1:] not in ([], ["0"]) or _after_failure(node)
    around = node.parent
    written = around is not None and around.type == "redirected_statement" and "reward" in source_of(around)
    return found[:2] == ["echo", "0"] and written


def _after_failure(node: Node) -> bool:
    """Whether a command runs where a comparison failed: `… || exit 0`, `if ! …; then exit 0; fi`."""
    for around in above(node):
        if around.type == "list":
            return [c.type for c in around.children if c.end_byte <= node.start_byte][-1:] == ["||"]
        if around.type == "if_statement":
            return _TURNED.search(source_of(around.named_children[0])) is not None
        if around.type == "do_group":
            break
    return False


def _writes(redirect: Node) -> bool:
    return _OUTPUT.match(source_of(redirect)) is not None and "reward" not in source_of(redirect)


def _is_read(loop: Node) -> bool:
    """Whether something reads the output of a loop."""
    for around in above(loop):
        if around.type in ("command_substitution", "process_substitution"):
            return True
        if around.type == "pipeline" and around.named_children[-1].start_byte > loop.start_byte:
            return True
        if around.type == "redirected_statement" and any(
            _writes(c) for c in around.named_children if c.type == "file_redirect"
        ):
            return True
    return False
