"""The control `instruction`: names that the tests check and neither the instruction nor the environment mentions. It is reported and takes no level:
it reads text and does not understand it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from sandboxes.base import AnyFile

_EXTENSIONS: Final = (
    "txt|json|jsonl|csv|tsv|md|py|sh|c|cpp|h|rs|go|js|ts|java|rb|html|css|xml|yaml|yml|toml|ini|cfg|conf|log|sql|db|sqlite|"
    "png|svg|pdf|parquet|npy|gz|zip|tar|out"
)
_FILE: Final = re.compile(rf"(?<![\w./$-])(?:/app/|\./)?((?:[\w-]+/)*[\w-]+\.(?:{_EXTENSIONS}))\b(?![\w/(])")
_KEY: Final = re.compile(r"""(?:\[|\.get\(|\bin )\s*["']([A-Za-z_][\w -]{2,40})["']\s*(?:\]|\)|\b)""")
_FORMATS: Final[dict[str, re.Pattern[str]]] = {
    "JSON": re.compile(r"\bjson\.loads?\(|\bjq\b"),
    "CSV": re.compile(r"\bcsv\.(reader|DictReader)\(|read_csv\("),
    "YAML": re.compile(r"\byaml\.(safe_)?load\(|\byq\b"),
    "XML": re.compile(r"\bElementTree\b|\bxmllint\b"),
    "TOML": re.compile(r"\btomllib\b|\btomli\b"),
}
_OWN: Final = frozenset(
    {
        "reward.txt",
        "reward.json",
        "results.json",
        "process.json",
        "test.sh",
        "conftest.py",
        "pytest.ini",
        "untrusted.py",
    }
)
_LIBRARY: Final = re.compile(r"(^|/)(vendor|site-packages|node_modules)/")
MAX_FOUND: Final = 20


def instruction_findings(
    instruction: str, tests: Mapping[str, AnyFile], environment: Mapping[str, bytes]
) -> list[Finding]:
    """`tests`: path below tests/ → content; `environment`: absolute path → content of what the agent begins with."""
    stated = instruction.lower()
    given = {path.rpartition("/")[2].lower() for path in environment}
    shown = b"\n".join(environment.values()).decode(errors="replace").lower()
    found: dict[str, Finding] = {}
    for path, file in sorted(tests.items()):
        if not path.endswith((".sh", ".bash", ".py")) or _LIBRARY.search(path):
            continue
        text = file.data.decode(errors="replace")
        for kind, name in _names(text, {each.rpartition("/")[2] for each in tests}):
            short = name.rpartition("/")[2].lower()
            if short in stated or short in given or (kind != "file" and short in shown):
                continue
            says = f"tests/{path} uses the {kind} {name!r}, which the instruction does not mention"
            found.setdefault(
                name, Finding(control=Control.INSTRUCTION, fault=TaskFault.UNNAMED, says=says, where=name)
            )
    return list(found.values())[:MAX_FOUND]


def _names(text: str, own: set[str]) -> Iterator[tuple[str, str]]:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for match in _FILE.finditer(code):
        name = match[1]
        if name.rpartition("/")[2] not in _OWN | own and not code[: match.start()].endswith(
            ("/tests/", "/tmp/")
        ):
            yield "file", name
    for match in _KEY.finditer(code):
        yield "key", match[1]
    for word, pattern in _FORMATS.items():
        if pattern.search(code):
            yield "format", word
