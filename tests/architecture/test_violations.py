"""Findings of the auditor and escapes from a sandbox raise `Violation` (tests/violations.py), since the gate excuses any other failure that does
not come again. So each look of a test goes to the function that raises it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
RAISES = {"audit": "nothing_found", "penstock": "command_found_nothing", "run_check": "promise_kept"}
"""A look → the function of tests/violations.py that takes its outcome. `penstock`: with the word audit among its arguments."""
THEMSELVES = {
    "contract/test_sandbox_conformance.py": "the suite on a provider that isolates nothing",
    "integration/audit/test_audit.py": "the auditor on damaged rows",
    "integration/audit/test_witness.py": "the auditor on damaged answers",
    "integration/pool/test_prune.py": "the auditor on steps that are gone",
    "unit/chaos/test_scenario.py": "what a chaos run counts",
    "unit/chaos/test_table.py": "what a chaos run counts",
    "unit/sandboxes/test_local_and_suite.py": "the suite on a provider that isolates nothing",
}
"""Tests of the looks themselves: a broken invariant or an escape is what they want to see."""


def name_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def look_of(node: ast.AST) -> str | None:
    """The key of RAISES, if a node looks for broken invariants or escapes."""
    if not isinstance(node, ast.Call) or name_of(node) not in RAISES:
        return None
    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
    return name_of(node) if name_of(node) != "penstock" or "audit" in words else None


def reported(function: ast.AST) -> Iterator[ast.AST]:
    """The looks in a function whose outcome goes to the function that raises `Violation`, directly or by a name."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    taken = {
        (name_of(call), part if isinstance(part, ast.Call) else ast.unparse(part))
        for call in calls
        for each in call.args
        for part in ast.walk(each)
        if isinstance(part, ast.Call | ast.Name)
    }
    yield from (call for call in calls if (look := look_of(call)) and (RAISES[look], call) in taken)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for call in ast.walk(node.value):
                if (look := look_of(call)) and any(
                    (RAISES[look], ast.unparse(each)) in taken for each in node.targets
                ):
                    yield call


def compares(node: ast.AST) -> bool:
    """Whether a node is a comparison with what an auditor says."""
    return isinstance(node, ast.Compare) and any(
        (isinstance(part, ast.Attribute) and part.attr == "violations")
        or (isinstance(part, ast.Constant) and str(part.value).endswith(" violations"))
        for part in (node.left, *node.comparators)
    )


def silent(text: str) -> list[int]:
    """The lines of looks whose finding raises no `Violation`."""
    nodes = list(ast.walk(ast.parse(text)))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    loud = {look for function in functions for look in reported(function)}
    return sorted(
        node.lineno
        for node in nodes
        if isinstance(node, ast.expr) and ((look_of(node) and node not in loud) or compares(node))
    )


def test_what_an_auditor_finds_and_what_gets_out_of_a_sandbox_raises_violation_in_every_test() -> None:
    files = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
    lines = {name: silent(path.read_text(encoding="utf-8")) for name, path in files.items()}
    found = [f"{name}:{line}" for name, there in lines.items() if name not in THEMSELVES for line in there]
    assert found == [], f"give the outcome to one of {sorted(RAISES.values())} (tests/violations.py)"
    assert [name for name in THEMSELVES if not lines.get(name)] == [], "take it off the list"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("report = await audit(reader, run)\n    assert report.seconds", [2]),
        ("report = await audit(reader, run)\n    await nothing_found(reader, report)", []),
        ("await nothing_found(reader, await audit(reader, run))", []),
        ("assert stack.penstock('audit', '--json').returncode == 0", [2]),
        ("world.penstock('orch1', 'audit')", [2]),
        ("stack.penstock('status')", []),
        ("command_found_nothing(stack.penstock('audit'))", []),
        ("done = stack.penstock('audit')\n    command_found_nothing(done)", []),
        ("done = stack.penstock('audit')\n    nothing_found(done)", [2]),
        ("result = await run_check(provider, check)\n    assert result.passed", [2]),
        ("promise_kept(await run_check(provider, check))", []),
        ("assert '0 violations' in shell(audit)", [2]),
        ("assert 0 == report.violations", [2]),
    ],
)
def test_a_look_is_silent_unless_its_outcome_goes_to_its_own_function(body: str, found: list[int]) -> None:
    assert silent(f"async def test() -> None:\n    {body}\n") == found
