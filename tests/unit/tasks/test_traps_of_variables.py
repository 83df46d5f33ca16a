"""Where bash takes text of the agent for the name of a variable or calculates with it: a line that runs a command is named, other lines are not."""

import subprocess
from pathlib import Path

import pytest

from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.shell import shell_traps

READ = "got=$(head -c 1000 out)\n"
TRAPS = [
    'declare -A seen; seen[x]=1; [ -v "seen[$got]" ]',
    '[ -v "$got" ]',
    'test -v "$got"',
    'a=(1); unset "$got"',
    'printf -v "$got" x',
    "echo ${!got}",
    "declare -n ref=$got; echo $ref",
    "declare -i n=$got",
    "declare -i n; n=$got",
    'f() { local -i n="$1"; }; f "$got"',
    'declare "$got=1"',
    'read -r "$got" < /dev/null',
    "RANDOM=$got",
    "set -- $(cat out); (( $1 == 42 ))",
    'set -- "$got"; [[ $1 -eq 42 ]]',
    "exec 3< out; read -r -u 3 n; [[ $n -eq 42 ]]",
    "read -ru3 n 3< out; (( n == 42 ))",
    "declare -i n; read n < out",
    "typeset -i n; read -r n <<< $got",
    ": ${x:=$got}; (( x == 42 ))",
    ': "${x=$got}"; [[ $x -eq 42 ]]',
    'tmp=$(mktemp); cat out > "$tmp"; n=$(<"$tmp"); (( n == 42 ))',
    'tmp=$(mktemp -d); cp out "$tmp"; read -r n < "${tmp}/out"; [[ $n -eq 42 ]]',
    'tmp=$(mktemp); tee "$tmp" < out; n=$(cat $tmp); (( n == 42 ))',
]
SAFE = [
    'read -r line <<< "$got"',
    'declare x="$got"',
    'printf "%s" "$got"',
    "declare -i n; n=$(wc -c < out)",
    '[ -n "$got" ]',
    "[[ -v HOME ]]",
    "unset got",
    'export seen="$got"',
    "set -- 1 2; (( $# == 2 && $1 == 1 ))",
    'f() { (( $1 == 3 )); }; set -- "$got"; f 3',
    "exec 3< /dev/null; read -r -u 3 n; [[ ${n:-0} -eq 42 ]]",
    "read -r -u 3 n 3< /dev/null < out; (( n == 42 ))",
    "declare -i n; read -r n < /dev/null; read -r text < out",
    ": ${x:=3}; (( x == 3 ))",
    'tmp=$(mktemp); wc -l < out > "$tmp"; n=$(<"$tmp"); (( n == 3 ))',
    'tmp=$(mktemp -d); cp out "$tmp"; echo 3 > "$tmp/want"; n=$(<"$tmp/want"); (( n == 3 ))',
    'tmp=$(mktemp); cat out > "$tmp"; cmp -s "$tmp" /dev/null; n=$(wc -c < "$tmp"); (( n == 42 ))',
]


def ran(line: str, directory: Path) -> bool:
    """Whether this line runs a command that the agent wrote."""
    (directory / "out").write_text("a[$(>ran)]")
    subprocess.run(["bash", "-c", READ + line], cwd=directory, capture_output=True)
    return (directory / "ran").exists()


@pytest.mark.parametrize("line", TRAPS)
def test_text_of_the_agent_that_bash_calculates_with_is_named(line: str, tmp_path: Path) -> None:
    assert ran(line, tmp_path), "it is not a trap"
    named = [(trap.rule, trap.line) for trap in shell_traps("tests/test.sh", READ + line, frozenset())]
    assert (Rule.ARITHMETIC, 2) in named


@pytest.mark.parametrize("line", SAFE)
def test_text_of_the_agent_that_stays_text_is_not_named(line: str, tmp_path: Path) -> None:
    assert not ran(line, tmp_path)
    assert not [
        t for t in shell_traps("tests/test.sh", READ + line, frozenset()) if t.rule is Rule.ARITHMETIC
    ]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_python_in_a_script_is_read_in_either_kind_of_quotes(quote: str) -> None:
    line = f"python3 -I -c {quote}import sys; sys.path.insert(0, chr(47)); import total; total.f() == $want or exit(1){quote}"
    named = [
        trap.rule for trap in shell_traps("tests/test.sh", line.replace("$want", "3"), frozenset({"total"}))
    ]
    assert named == [Rule.IMPORTED]
    if quote == '"':
        assert [trap.rule for trap in shell_traps("tests/test.sh", line, frozenset({"total"}))] == [
            Rule.IMPORTED
        ]
