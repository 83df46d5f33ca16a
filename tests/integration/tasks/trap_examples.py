"""For each trap: a judge that falls into it, an attack on it, and the judge's safe form. The tests of `penstock tasks check` prove each.

The work of all: the file `out` holds 42 (`oracle`). A judge sets `ok` to 1, and the content of its reward file is the verdict. `attack` is the
name of a probe, or a command. In the judges `{}` is the trap's line or its safe form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.tasks.probes.judged import PLANTED
from orchestrator.tasks.traps import Rule

START = "mkdir -p /logs/verifier; want=$(cat /tests/want); ok=0\n"
END = "echo $ok > /logs/verifier/reward.txt\nexit 0\n"
READ = "got=$(head -c 1000 out 2>/dev/null)\n"
WHOLE = '[ "$got" = "$want" ] && ok=1\n'
RUN = 'got=$(python3 -I "$PENSTOCK_UNTRUSTED" 10 {} 2>/dev/null | head -c 1000)\n'
CASES = 'ok=1\nwhile read -r n want; do\n[ "$({} total.py $n 2>/dev/null | head -c 1000)" = "$want" ] || ok=0\ndone < /tests/cases\n'
EACH = (
    'ok=1\nwhile read -r each; do\n[ "$each" = "skip 42" ] || [ "$got" = "$each" ] || ok=0\ndone < {}/cases\n'
)
PYTHON = 'python3 -I -c "{}" 2> /dev/null && ok=1\n'
TAKEN = '[ "$(cat /tmp/got/result 2> /dev/null)" = "$want" ] && ok=1\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """`trap` and `safe`: the middle of the test script; the rule is to name a line that holds `line`."""

    name: str
    rule: Rule
    line: str
    trap: str
    safe: str
    attack: str
    oracle: str = "echo 42 > out"
    files: Mapping[str, str] = field(default_factory=dict)
    trap_files: Mapping[str, str] = field(default_factory=dict)


EXAMPLES = (
    Example(
        name="-eq in double brackets", rule=Rule.ARITHMETIC, line="-eq", attack="answers with arithmetic",
        trap=READ + '[[ "$got" -eq $want ]] && ok=1\n', safe=READ + '[ "$got" -eq "$want" ] 2>/dev/null && ok=1\n',
    ),
    Example(
        name="double parentheses", rule=Rule.ARITHMETIC, line="((", attack="answers with arithmetic",
        trap=READ + "(( got == want )) && ok=1\n", safe=READ + WHOLE,
    ),
    Example(
        name="arithmetic expansion", rule=Rule.ARITHMETIC, line="$((", attack="answers with arithmetic",
        trap=READ + '[ "$(( $got + 0 ))" = "$want" ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="let", rule=Rule.ARITHMETIC, line="let", attack="answers with arithmetic",
        trap=READ + 'let "n = got" && [ $n = 42 ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="an index", rule=Rule.ARITHMETIC, line="seen[", attack="answers with arithmetic",
        trap=READ + 'seen[$got]=1; [ "${seen[42]}" = 1 ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="an unquoted right side", rule=Rule.PATTERN, line="[[", attack="answers with a pattern",
        trap=READ + '[[ "$want" == $got ]] && ok=1\n', safe=READ + '[[ "$want" == "$got" ]] && ok=1\n',
    ),
    Example(
        name="a pattern of case", rule=Rule.PATTERN, line="$got)", attack="answers with a pattern",
        trap=READ + 'case "$want" in\n$got) ok=1;;\nesac\n', safe=READ + 'case "$want" in\n"$got") ok=1;;\nesac\n',
    ),
    Example(
        name="a pattern in what is cut out", rule=Rule.PATTERN, line="${want/", attack="answers with a pattern",
        trap=READ + '[ "${want/$got/}" = "" ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="a pattern of Python", rule=Rule.PATTERN, line="re.fullmatch", attack="answers with an expression",
        trap=READ + PYTHON.format("import re; assert re.fullmatch(open('/app/out').read().strip(), '42')"), safe=READ + WHOLE,
    ),
    Example(
        name="a part of what is expected", rule=Rule.EMPTY, line="[[", attack="true",
        trap=READ + '[[ "$want" == *"$got"* ]] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="as many comparisons as lines of the agent", rule=Rule.EMPTY, line="zip", attack="> out",
        trap=PYTHON.format("assert all(g == w for g, w in zip(open('/app/out').read().split(), ['42']))"),
        safe=PYTHON.format("assert all(g == w for g, w in zip(open('/app/out').read().split(), ['42'], strict=True))"),
    ),
    Example(
        name="unquoted operators", rule=Rule.OPERATORS, line="[ $got", attack="answers with operators of test",
        trap=READ + "[ $got = $want ] && ok=1\n", safe=READ + WHOLE,
    ),
    Example(
        name="the answer as pattern", rule=Rule.GREP_BY_ANSWER, line="grep", attack="answers with an expression",
        trap=READ + 'grep -q "$got" /tests/want && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="the answer as file of patterns", rule=Rule.GREP_BY_ANSWER, line="grep", attack="answers with an expression",
        trap="grep -qxf out /tests/want && ok=1\n", safe=READ + WHOLE,
    ),
    Example(
        name="grep in the answer", rule=Rule.SOMEWHERE, line="grep", attack="answers with a thousand lines",
        trap='grep -qx "$want" out && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="part of the answer", rule=Rule.SOMEWHERE, line="[[", attack="answers with a thousand lines",
        trap='got=$(cat out)\n[[ "$got" == *"$want"* ]] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="eval", rule=Rule.PROGRAM_TEXT, line="eval", attack="answers with a command",
        trap=READ + 'eval "value=$got"; [ "$value" = "$want" ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="text in a program", rule=Rule.PROGRAM_TEXT, line="bash -c", attack="answers with a command",
        trap=READ + '[ "$(bash -c "echo $got")" = "$want" ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="git of the agent's repository", rule=Rule.GIT, line="git", attack="configures git for its judge",
        trap='export HOME=/tmp; git status > /tmp/output 2>&1\n' + READ + WHOLE, safe=READ + WHOLE,
    ),
    Example(
        name="make", rule=Rule.BUILD_TOOL, line="make", attack="leaves files that build tools run",
        trap="make check > /tmp/output 2>&1\n" + READ + WHOLE,
        safe='python3 -I "$PENSTOCK_UNTRUSTED" 10 make check > /tmp/output 2>&1\n'
        + "[ -f out ] && [ ! -L out ] && " + READ + WHOLE,
    ),
    Example(
        name="Python without -I", rule=Rule.NOT_ISOLATED, line="python3 -c", attack="plants a reader of JSON",
        trap="python3 -c 'import json; print(json.dumps(1))' > /tmp/output 2>&1\n" + READ + WHOLE,
        safe="python3 -I -c 'import json; print(json.dumps(1))' > /tmp/output 2>&1\n" + READ + WHOLE,
    ),
    Example(
        name="Python from a here-document", rule=Rule.NOT_ISOLATED, line="python3 - <<", attack="plants a reader of JSON",
        trap="python3 - <<'END' > /tmp/output 2>&1\nimport json\nEND\n" + READ + WHOLE,
        safe="python3 -I - <<'END' > /tmp/output 2>&1\nimport json\nEND\n" + READ + WHOLE,
    ),
    Example(
        name="a program without the wrapper", rule=Rule.AGENT_PROGRAM, line="python3 total.py",
        attack="writes the reward while it is judged",
        trap="got=$(timeout 10 python3 total.py 2>/dev/null | head -c 1000)\n" + '[ "$got" = "$want" ] && echo 1 > /logs/verifier/reward.txt\nexit\n',
        safe=RUN.format("python3 total.py") + WHOLE, oracle="echo 'print(42)' > total.py",
    ),
    Example(
        name="a command that this check does not know", rule=Rule.UNKNOWN, line="run-parts",
        attack="mkdir -p steps; printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\nkill -9 $PPID\\n' > steps/one; chmod +x steps/one",
        trap="run-parts steps > /dev/null 2>&1 || exit 0\n" + READ + WHOLE,
        safe='python3 -I "$PENSTOCK_UNTRUSTED" 10 run-parts steps > /dev/null 2>&1\n[ -f out ] && [ ! -L out ] && ' + READ + WHOLE,
    ),
    Example(
        name="source", rule=Rule.SOURCED, line="source", attack="leaves a script as its work",
        trap="source ./out > /dev/null 2>&1\n[ \"$value\" = 42 ] && ok=1\n", safe="IFS== read -r key value < out\n" + '[ "$value" = 42 ] && ok=1\n',
        oracle="echo value=42 > out",
    ),
    Example(
        name="a shell that reads the answer", rule=Rule.SOURCED, line="bash", attack="leaves a script as its work",
        trap='[ "$(bash < out)" = "$want" ] && ok=1\n',
        safe='[ "$(python3 -I "$PENSTOCK_UNTRUSTED" 10 bash out | head -c 1000)" = "$want" ] && ok=1\n', oracle="echo echo 42 > out",
    ),
    Example(
        name="names in shell text", rule=Rule.NAMES, line="find", attack="leaves file names that are commands",
        trap="find . -name '*.txt' -exec sh -c 'test -s {}' \\; 2> /dev/null\n" + READ + WHOLE,
        safe='for file in ./*.txt; do [ -s "$file" ]; done\n' + READ + WHOLE,
    ),
    Example(
        name="newer than", rule=Rule.TIMES, line="-nt", attack="rm -f seed; sleep 0; echo x > out",
        trap="[ out -nt seed ] && ok=1\n", safe=READ + WHOLE, files={"environment/files/seed": "1"},
    ),
    Example(
        name="links made while judged", rule=Rule.LINKS, line="cat out",
        attack="printf 'import os\\nos.symlink(\"/tests/want\", \"out\")\\n' > total.py",
        trap="timeout 10 python3 total.py > /dev/null 2>&1\n" + '[ "$(cat out)" = "$want" ] && ok=1\n',
        safe='python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 total.py > /dev/null 2>&1\n'
        + '[ -f out ] && [ ! -L out ] && [ "$(head -c 1000 out)" = "$want" ] && ok=1\n',
        oracle="echo 'print(42, file=open(\"out\", \"w\"))' > total.py",
    ),
    Example(
        name="a link under the name of what the tests write", rule=Rule.LINKS, line="> expected", attack="echo 7 > out; ln -s out expected",
        trap="echo $want > expected\ncmp -s out expected && ok=1\n", safe="rm -f expected\necho $want > expected\ncmp -s out expected && ok=1\n",
    ),
    *(
        Example(
            name=f"links that are taken along: {line}", rule=Rule.COPIED, line=line,
            attack="mkdir -p project/got; ln -s ../../tests/want project/got/result",
            trap=f"{trap} 2> /dev/null\n" + TAKEN, safe=f"{safe} 2> /dev/null\n" + TAKEN,
            oracle="mkdir -p project/got; echo 42 > project/got/result",
        )
        for line, trap, safe in (
            ("cp -r", "cp -r project/got /tmp", "cp -rL project/got /tmp"),
            ("mv", "mv project/got /tmp/got", "find project -type l -delete; cp -RL project/got /tmp/got"),
            ("tar", "tar -C project -cf - got | tar -C /tmp -xf -", "tar -C project -chf - got | tar -C /tmp -xf -"),
        )
    ),
    Example(
        name="a calculator", rule=Rule.PROGRAM_TEXT, line="bc", attack="echo '1 || 1' > out",
        trap=READ + '[ "$(echo "$got == $want" | bc)" = 1 ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="a console of a database", rule=Rule.PROGRAM_TEXT, line="sqlite3", attack="echo '.shell cat /tests/want' > out",
        trap='[ "$(sqlite3 :memory: < out)" = "$want" ] && ok=1\n', oracle="echo 'SELECT 42;' > out",
        safe='[ "$(python3 -I "$PENSTOCK_UNTRUSTED" 10 sqlite3 :memory: ".read out" | head -c 1000)" = "$want" ] && ok=1\n',
    ),
    Example(
        name="an editor", rule=Rule.PROGRAM_TEXT, line="ed -s", attack="echo '!cat /tests/want' > out",
        trap='[ "$(ed -s /dev/null < out | head -n 1)" = "$want" ] && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="a search path", rule=Rule.AGENT_PROGRAM, line="PATH=.", attack="printf '#!/bin/sh\\nexit 0\\n' > cmp; chmod +x cmp",
        trap='PATH=.:$PATH cmp -s out /tests/want && ok=1\n', safe=READ + WHOLE,
    ),
    Example(
        name="a compiler", rule=Rule.COMPILED, line="gcc", files={"tests/want.c": '"42"\n'},
        oracle="echo 'int puts(const char *); int main(void) { puts(\"42\"); return 0; }' > total.c",
        attack="printf 'int puts(const char *);\nint main(void) { puts(\n#include \"/tests/want.c\"\n); return 0; }\n' > total.c",
        trap="rm -f total; gcc -o total total.c 2> /dev/null\n" + RUN.format("./total") + WHOLE,
        safe='python3 -I "$PENSTOCK_UNTRUSTED" 30 gcc -o total total.c 2> /dev/null\n' + RUN.format("./total") + WHOLE,
    ),
    Example(
        name="an archive", rule=Rule.COPIED, line="tar", attack="mkdir got; ln -s /tests/want got/result; tar -cf out.tar got; rm -r got",
        trap="tar -C /tmp -xf out.tar 2> /dev/null\n" + TAKEN, oracle="mkdir got; echo 42 > got/result; tar -cf out.tar got",
        safe="tar -C /tmp -xf out.tar 2> /dev/null\nfind /tmp/got -type l -delete 2> /dev/null\n" + TAKEN,
    ),
    Example(
        name="the agent's module in the judge", rule=Rule.IMPORTED, line="import total", attack=f"cat > total.py <<'END'\n{PLANTED}\nEND",
        trap="python3 -I /tests/check.py > /dev/null 2>&1\n" + READ.replace("out", "/logs/output") + WHOLE,
        safe=RUN.format("python3 -c 'import total; print(total.answer)'") + WHOLE, oracle="echo answer = 42 > total.py",
        trap_files={"tests/check.py": "import sys\nsys.path.insert(0, '/app')\nimport total\nopen('/logs/output', 'w').write(str(total.answer))\n"},
    ),
    Example(
        name="a number of the agent's as reward", rule=Rule.PAID, line="echo $ok", attack="echo 1 > out",
        trap="ok=$(head -c 100 out)\n", safe=READ + WHOLE,
    ),
    Example(
        name="a reward that a program of the agent's prints", rule=Rule.PAID, line="total.py > ", attack="echo 'print(1)' > total.py",
        trap='python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 total.py > /logs/verifier/reward.txt\nexit\n',
        safe=RUN.format("python3 total.py") + WHOLE, oracle="echo 'print(42)' > total.py",
    ),
    Example(
        name="an expected file that the agent can write", rule=Rule.BOTH_SIDES, line="cmp", attack="echo 7 > out; echo 7 > expected",
        trap="cmp -s out expected && ok=1\n", safe="cmp -s out /tests/want.line && ok=1\n",
        files={"environment/files/expected": "", "tests/want.line": "42\n"},
    ),
    Example(
        name="an exit status of the agent's program", rule=Rule.STATUS, line="total.py", attack="echo > total.py",
        trap='python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 total.py > /dev/null 2>&1 && ok=1\n', safe=RUN.format("python3 total.py") + WHOLE,
        oracle="echo 'print(42)' > total.py",
    ),
    *(
        Example(
            name=f"a number that is none, in {line}", rule=Rule.NOT_A_NUMBER, line=line, attack="answers with NaN",
            trap=READ + trap + ' && ok=1\n', safe=READ + safe + ' && ok=1\n',
        )
        for line, trap, safe in (
            ("<=", "awk -v g=\"$got\" 'BEGIN { d = g - 42; exit !(d <= 0.01 && d >= -0.01) }'",
             "awk -v g=\"$got\" 'BEGIN { d = g - 42; exit !(d < 0.01 && d > -0.01) }'"),
            ("python3", "python3 -I -c 'import sys; sys.exit(abs(float(sys.argv[1]) - 42) > 0.01)' \"$got\" 2> /dev/null",
             "python3 -I -c 'import sys; sys.exit(not abs(float(sys.argv[1]) - 42) <= 0.01)' \"$got\" 2> /dev/null"),
            ("awk", "awk -v g=\"$got\" 'BEGIN { d = g - 42; exit (d > 0.01 || d < -0.01) }'",
             "awk -v g=\"$got\" 'BEGIN { d = g - 42; exit !(d < 0.01 && d > -0.01) }'"),
        )
    ),
    Example(
        name="an exit status that a later line reads", rule=Rule.STATUS, line="total.py", attack="echo > total.py",
        trap='python3 -I "$PENSTOCK_UNTRUSTED" 10 python3 total.py > /dev/null 2>&1\nif [ $? -eq 0 ]; then ok=1; fi\n',
        safe=RUN.format("python3 total.py") + WHOLE, oracle="echo 'print(42)' > total.py",
    ),
    Example(
        name="an edit of the tests", rule=Rule.READ_ONLY, line="sed", attack="true", files={"tests/cases": "skip 42\n"},
        trap='sed -i "s/^skip//" /tests/cases 2> /dev/null\n' + READ + EACH.format("/tests"),
        safe='cp /tests/cases /tmp && sed -i "s/^skip//" /tmp/cases\n' + READ + EACH.format("/tmp"),
    ),
    Example(
        name="the input of a loop of the tests", rule=Rule.INPUT, line="total.py", attack="reads the cases that its judge reads",
        trap=CASES.format("timeout 10 python3"), safe=CASES.format('python3 -I "$PENSTOCK_UNTRUSTED" 10 python3'),
        files={"tests/cases": "a 42\nb 7\n"}, oracle="echo 'import sys; print({\"a\": 42, \"b\": 7}[sys.argv[1]])' > total.py",
    ),
    *(
        Example(name=f"silence: {line}", rule=Rule.EMPTY, line=line, attack=attack, trap=trap + " && ok=1\n", safe=safe + " && ok=1\n")
        for line, attack, trap, safe in (
            ("diff", "rm -f out", '[ -z "$(diff out <(echo 42) 2> /dev/null)" ]', '[ -f out ] && [ -z "$(diff out <(echo 42))" ]'),
            ("grep", "rm -f out", "! grep -qvx 42 out", "[ -s out ] && ! grep -qvx 42 out"),
            ("awk", "true > out", "awk '$1 != 42 { bad = 1 } END { exit bad }' out", "awk '$1 != 42 { bad = 1 } END { exit bad || NR != 1 }' out"),
            ("while", "true > out", 'bad=0; while read -r l; do [ "$l" = 42 ] || bad=1; done < out; [ $bad = 0 ]',
             '[ -s out ] && bad=0; while read -r l; do [ "$l" = 42 ] || bad=1; done < out; [ "$bad" = 0 ]'),
            ("head", "true > out", 'head -n "$(wc -l < out)" /tests/want | cmp -s - out', "cmp -s out <(echo 42)"),
        )
    ),
    Example(
        name="the exit status of tee", rule=Rule.LOST_STATUS, line="tee", attack="echo 7 > out",
        trap="diff out <(echo 42) | tee /tmp/d && ok=1\n", safe="set -o pipefail\ndiff out <(echo 42) | tee /tmp/d && ok=1\n",
    ),
    *(
        Example(
            name=f"a file that the answer names: {line}", rule=Rule.NAMED_FILE, line=line, attack="echo /tests/want.line > out", trap=trap, safe=safe,
            oracle="echo 42 > total; echo total > out", files={"tests/want.line": "42\n"},
        )
        for line, trap, safe in (
            ("cmp", READ + 'cmp -s "$got" /tests/want.line && ok=1\n',
             READ + 'file=$(realpath -e -- "$got") && [[ "$file" == /app/* ]] && [ ! -L "$got" ] && cmp -s "$file" /tests/want.line && ok=1\n'),
            ("python3", PYTHON.format("assert open(open('out').read().strip()).read() == '42\\n'"),
             PYTHON.format("got = open('out').read().strip(); assert got == 'total'; assert open(got).read() == '42\\n'")),
        )
    ),
)  # fmt: skip
