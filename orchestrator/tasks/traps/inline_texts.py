"""Programs of perl, ruby, PHP, R, Lua and node in a script (`perl -e '…'`) that run what the agent wrote. All else in them is not read."""

import re
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.tree import is_safe, plain, quoted, source_of

_FIXED: Final = (
    r"""(?:\s*\(?\s*(?:"[^"$#\\]*"|'[^']*')\s*[;)}]|\s*\(?\s*(?:"[^"$#\\]*"|'[^']*')\s*(?:$|or\b|\|\|))"""
)
_CALLED: Final = r"(?<![$@%&\w>.:{/|^\"'])"
_PATTERN: Final = r"\s*[|/\\\]]"
"""A part of a pattern that looks for the word: `/(eval|exec)/`."""
_RUNS: Final = {
    "perl": re.compile(
        rf"{_CALLED}eval\b(?!\s*\{{|\s*=>|{_PATTERN}|{_FIXED})|(?<![$@%&\w>.:{{])(?:system|exec|do|require)\b\s*\(?\s*[$@<]"
        r"|\bs([/|,#!])(?:(?!\1).)*\1(?:(?!\1).)*\1[a-z]*ee|`[^`]*[$@][^`]*`|\bqx\W[^;]*[$@]"
    ),
    "ruby": re.compile(
        rf"{_CALLED}(?:eval|load|system|exec|spawn)\b(?!{_PATTERN}|{_FIXED})[\s(]*[\w\"'$#]|\.(?:instance|class|module)_eval\b(?!\s*(?:\{{|do\b))"
        r"|\bMarshal\.load\b|\bYAML\.unsafe_load|`[^`]*#\{"
    ),
    "php": re.compile(
        rf"{_CALLED}(?:eval|system|exec|shell_exec|passthru|popen|proc_open)\s*\((?!{_FIXED})"
        r"|\bunserialize\s*\(|\b(?:include|require)(?:_once)?\b\s*\(?\s*\$"
    ),
    "Rscript": re.compile(
        rf"\beval\s*\(\s*(?:parse|str2lang|str2expression)\b|\bsource\s*\(\s*[^\"'\s]|\bsystem2?\s*\((?!{_FIXED})"
    ),
    "lua": re.compile(rf"{_CALLED}(?:load|loadstring|dofile|loadfile)\b(?!{_FIXED})|\b(?:os\.execute|io\.popen)\s*\((?!{_FIXED})"),
    "node": re.compile(rf"{_CALLED}(?:eval|Function)\s*\((?!{_FIXED})|\bvm\.\w*[rR]un\w*\("),
}  # fmt: skip
"""Calls that run a text which is not fixed."""
_NAMED: Final = {
    "perl": re.compile(r"(?<![$@%&\w>.:{])(?:do|require)\s*\(?\s*[\"']([^\"'$]*/[^\"'$]*|[^\"'$]+\.p[lm])[\"']"),
    "ruby": re.compile(r"(?<![\w.])(?:load|require_relative|require(?=\W+[./]))\s*\(?\s*[\"']([^\"'#]+)[\"']"),
    "php": re.compile(r"\b(?:include|require)(?:_once)?\b\s*\(?\s*[\"']([^\"'$]+)[\"']"),
    "Rscript": re.compile(r"\b(?:source|sys\.source)\s*\(\s*(?:file\s*=\s*)?[\"']([^\"']+)[\"']"),
    "lua": re.compile(r"\b(?:dofile|loadfile)\s*\(?\s*[\"']([^\"']+)[\"']"),
}  # fmt: skip
"""Files that a program runs by their name."""
_LITERALS: Final = re.compile(
    r"""\\.|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?:[(,=~!&|{;]|\b(?:if|unless|and|or|not|when|split|return)\b|^)\s{0,9}/(?:[^/\\\n]|\\.)+/"
    r"|\b(?:m|qr)(?:\{[^{}]{0,200}\}|([/|!,#])(?:(?!\2).){0,200}\2)",
    re.DOTALL,
)
"""Texts in quotes, and patterns: `/…/` behind a sign or a word that no value ends, `m{…}`, `qr/…/`."""
_WORDS: Final = re.compile(
    r"`|\b(?:eval|exec|shell_exec|system2?|do|require|include|load\w*|spawn|dofile|popen|passthru|proc_open|unserialize|source|Function)\b"
)
_CODE: Final = re.compile(r"[$@#]\{")
"""Code in a text: `"@{[eval $_]}"`, `"#{eval(x)}"`."""
_LANGUAGES: Final = {"luajit": "lua", "nodejs": "node"}
_READS: Final = re.compile(
    r"\b(?:STDIN|ARGV|ARGF|gets|stdin|readlines?|scan|File|IO|fopen|fgets|file|open|parse|io\.(?:read|lines|open)|readFileSync|file_get_contents)\b"
    r"|<\w*>|php://"
)
_NO_FILES: Final = frozenset({"r", "rb", "rt", "a", "utf8", "utf-8", "UTF-8", "fs", "node:fs"})
_MAGIC: Final = re.compile(r"<(?:ARGV)?>(?!>)")
_EXPANSION: Final = r"\$(?:\{\w+\}|\w+)"
_OPEN_ENDS: Final = re.compile(rf"[*?]|.*[*?]|[*?].*|\"?{_EXPANSION}.*|.*{_EXPANSION}\"?", re.DOTALL)


def runs_agents_text(node: Node, name: str, rest: list[Node], text: AgentText) -> bool:
    """`perl -ne 'print eval $_' out`, `php -r 'include "out.php";'`. `rest`: the program and the words after it."""
    language = _LANGUAGES.get(name, name)
    if language not in _RUNS or not rest:
        return False
    program = plain(rest[0])
    if rest[0].type == "string":
        program = re.sub(r'\\([\\"$`])', r"\1", program)
    inside = text.in_a_safe_directory(node)
    named = _NAMED[language].findall(program) if language in _NAMED else []
    if any(not is_safe(path) and (path.startswith("/") or not inside) for path in named):
        return True
    if _RUNS[language].search(_without_words(program)) is None:
        return False
    given = [word for word in rest[1:] if not plain(word).isdigit()]
    own_file = not inside and not given and _READS.search(program) is not None and '"/tests' not in program
    return text.stdin(node) is not None or any(map(text.unsafe, given)) or (own_file and _names_file(program))


def _without_words(program: str) -> str:
    """A program whose texts and patterns name no calls: `die "no eval allowed" if /eval\\s*\\(/` looks for the word."""
    return _LITERALS.sub(
        lambda m: m[0] if m["text"] and _CODE.search(m[0]) else _WORDS.sub("x", m[0]), program
    )


def opens_names(letters: str, rest: list[Node], text: AgentText) -> bool:
    """`perl -ne 'print' *`: perl opens a file called `command|` by running the command."""
    reads = bool({"n", "p"} & set(letters)) or (bool(rest) and _MAGIC.search(plain(rest[0])) is not None)
    return reads and any(
        _OPEN_ENDS.fullmatch(source_of(word)) is not None
        and (
            text.carries(word)
            or (not quoted(word) and bool({*"*?"} & {*source_of(word)}) and text.unsafe(word))
        )
        for word in rest[1:]
    )


def _names_file(program: str) -> bool:
    """Whether a program names a file of the work directory: `open F, "out"`, `"/app/out"`."""
    found = re.findall(r"[\"']([\w./][\w./-]*)[\"']", program)
    return any(not is_safe(path) and any(map(str.isalpha, path)) and path not in _NO_FILES for path in found)
