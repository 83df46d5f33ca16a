"""The rules: the problem, and the safe form. Ids never change their meaning."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Rule(StrEnum):
    """A trap, by its id. `penstock-allow ID: reason` in a comment on the line, or on the line above, allows it there."""

    UNREADABLE = "PT100"
    ARITHMETIC = "PT101"
    PATTERN = "PT102"
    OPERATORS = "PT103"
    GREP_BY_ANSWER = "PT104"
    PROGRAM_TEXT = "PT105"
    SOMEWHERE = "PT106"
    GIT = "PT107"
    BUILD_TOOL = "PT108"
    NOT_ISOLATED = "PT109"
    AGENT_PROGRAM = "PT110"
    SOURCED = "PT111"
    NAMES = "PT112"
    TIMES = "PT113"
    LINKS = "PT114"
    IMPORTED = "PT115"
    COPIED = "PT116"
    COMPILED = "PT117"
    UNKNOWN = "PT118"
    DRAWS = "PT119"
    PAID = "PT120"
    BOTH_SIDES = "PT121"
    STATUS = "PT122"
    IMAGE_DATA = "PT123"
    INPUT = "PT124"
    NOT_A_NUMBER = "PT125"
    EMPTY = "PT126"
    LOST_STATUS = "PT127"
    READ_ONLY = "PT128"
    NAMED_FILE = "PT129"
    SHELLCHECK = "PT190"


@dataclass(frozen=True, slots=True)
class Advice:
    """`says`: the possible problem. `safe`: the form that avoids it."""

    says: str
    safe: str


ADVICE: Final[dict[Rule, Advice]] = {
    Rule.UNREADABLE: Advice(
        "this cannot be read, so it was not checked", "write it more plainly, in shell or Python 3"
    ),
    Rule.ARITHMETIC: Advice(
        "bash calculates with text of the agent: a[$(command)] runs the command", '[ "$got" -eq "$want" ], or compare as text: [ "$got" = "$want" ]'
    ),
    Rule.PATTERN: Advice("text of the agent is a pattern here: * equals everything", 'quote it: [[ "$want" == "$got" ]]'),
    Rule.OPERATORS: Advice("unquoted text of the agent can bring operators: x -o x", 'quote it: [ "$got" = "$want" ]'),
    Rule.GREP_BY_ANSWER: Advice(
        "the agent's text is the pattern of grep: an empty line or .* matches everything", 'compare whole texts: [ "$got" = "$want" ]'
    ),
    Rule.PROGRAM_TEXT: Advice(
        "text of the agent becomes part of a program", "give it as an argument or on standard input, never in the program's text"
    ),
    Rule.SOMEWHERE: Advice(
        "the right text counts wherever it stands: an answer that lists everything holds it",
        'compare the whole: [ "$(head -c 1000 out)" = "$want" ]',
    ),
    Rule.GIT: Advice(
        "git runs what the agent's .git configures: fsmonitor, hooks, external diffs",
        'python3 -I "$PENSTOCK_UNTRUSTED" 10 git …, or compare files without git',
    ),
    Rule.BUILD_TOOL: Advice(
        "this tool runs what the agent's own files say (Makefile, package.json, conftest.py)",
        'run it through python3 -I "$PENSTOCK_UNTRUSTED" and decide by what the tests compute outside of it',
    ),
    Rule.NOT_ISOLATED: Advice(
        "it imports modules from the work directory first: the agent's json.py, for node its node_modules",
        "python3 -I; in front of node: cd /tests; for other languages: modules from /tests",
    ),
    Rule.AGENT_PROGRAM: Advice(
        "a program of the agent's runs with the judge's rights: it can write the reward", 'python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 total.py'
    ),
    Rule.SOURCED: Advice("the shell runs a file of the agent's as its own script", "read the value: IFS= read -r value < out"),
    Rule.NAMES: Advice("names of the agent's files become shell text or options", 'for file in ./*; do … "$file" …; done; perl -ne … < "$file"'),
    Rule.TIMES: Advice("the agent sets the times of its files", "compare contents"),
    Rule.LINKS: Advice(
        "this may be a link or a pipe: the agent left it, or a program of the agent's that ran before",
        '[ -f out ] && [ ! -L out ] in front of it; what the tests write: in /tmp, or after rm -f out'
    ),
    Rule.IMPORTED: Advice(
        "the agent's module is imported into the process that decides", "run it through $PENSTOCK_UNTRUSTED and compare what it prints"
    ),
    Rule.COPIED: Advice(
        "links in what the agent left lead elsewhere from another place: out/x -> ../../tests/want",
        "cp -rL, rsync -rL, tar -ch: what the links lead to; or find out -type l -delete in front of it, after it for an archive; "
        'extractall(filter="data")',
    ),
    Rule.COMPILED: Advice(
        'the compiler reads what the source names, or runs its macros and processors, with the judge\'s rights: #include "/tests/want"',
        'python3 -I "$PENSTOCK_UNTRUSTED" 60 gcc -o prog prog.c',
    ),
    Rule.UNKNOWN: Advice(
        "this check does not know the command, which reads what the agent wrote: it may run it",
        'python3 -I "$PENSTOCK_UNTRUSTED" 10 command …, or state the reason: # penstock-allow PT118: it only reads',
    ),
    Rule.DRAWS: Advice(
        "another try draws other random numbers, so that the verdict does not repeat",
        'draw from $PENSTOCK_SEED: $RANDOM in bash, shuf --random-source=<(yes "$PENSTOCK_SEED"), in Python random.seed(os.environ["PENSTOCK_SEED"])',
    ),
    Rule.PAID: Advice(
        "the agent's own number becomes the reward",
        "compute the reward from what the tests measure: [ \"$got\" = \"$want\" ] && echo 1 > /logs/verifier/reward.txt"
    ),
    Rule.BOTH_SIDES: Advice(
        "the agent can write both sides of this comparison", "keep what is expected in /tests: cmp -s out /tests/want; sha256sum -c /tests/sums"
    ),
    Rule.STATUS: Advice(
        "the agent's own program decides by its exit status: exit 0 is enough", "decide by what it prints or writes, compared outside of it"
    ),
    Rule.IMAGE_DATA: Advice(
        "the image brings this file in a directory of data, which the agent can write: the tests get what it wrote",
        "put what the tests compare with into tests/, which the agent never sees",
    ),
    Rule.INPUT: Advice(
        "the agent's program gets what the tests read themselves: it reads the expected values, and takes cases away",
        'python3 -I "$PENSTOCK_UNTRUSTED" 10 ./prog < /dev/null',
    ),
    Rule.NOT_A_NUMBER: Advice(
        "an answer that is not a number passes: nan is neither too small nor too large, and for [ a text is not -ne 42",
        'compare in the positive way: [ "$got" -eq 42 ] && ok=1; '
        "abs(got - want) <= 0.01, in awk exit !(d < 0.01); or math.isfinite(got) first",
    ),
    Rule.EMPTY: Advice(
        "an empty or missing answer passes: it is a part of every text, no line of it is wrong, and what is not there is not checked",
        'compare the whole: [ "$got" = "$want" ], cmp -s out /tests/want, got == want; zip(got, want, strict=True); '
        "require the length: len(rows) == 3, [ -s out ], and path.exists()",
    ),
    Rule.READ_ONLY: Advice(
        "/tests is read-only: the write fails, and the tests go on with the files as they were",
        'tests=$(mktemp -d) && cp -a /tests/. "$tests", then edit and run the files there',
    ),
    Rule.LOST_STATUS: Advice(
        "any answer passes: this is the exit status of the last command (tee, tail, cat …) or of `local`, which is 0",
        "set -o pipefail in front of it; ${PIPESTATUS[0]}; local r; r=$(…)",
    ),
    Rule.NAMED_FILE: Advice(
        "the agent's text names the file that the judge reads: the answer /tests/want is right without the work",
        'file=$(realpath -e -- "$got") && [[ "$file" == /app/* ]] && [ ! -L "$got" ], then read "$file"; in Python Path(got).resolve() below /app',
    ),
    Rule.SHELLCHECK: Advice("shellcheck found something", "see its page"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A warning: a rule at a line of a file of the task. `note`: details in addition to the rule, may be empty."""

    rule: Rule
    file: str
    line: int
    text: str
    note: str = ""

    @property
    def says(self) -> str:
        return self.note or ADVICE[self.rule].says

    @property
    def safe(self) -> str:
        return ADVICE[self.rule].safe


def lines_of(text: str) -> list[str]:
    """The lines of a program, the first one at 1. LF, CRLF and CR end one; a form feed does not."""
    lines = re.split(r"\r\n?|\n", text)
    return ["", *(lines if lines[-1] else lines[:-1])]
