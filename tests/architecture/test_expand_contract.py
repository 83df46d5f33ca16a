"""Old and new code work side by side on one database while an upgrade rolls. A migration expands the schema or contracts it, never both.
A contracting migration states how old code may be from then on (ops/guides/upgrade.md).

A migration that only adds is an expansion: code that does not know the additions continues to work. A migration that drops, renames,
or refuses rows that were valid before is a contraction.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.pool.engine import FIRST, MIGRATIONS, REVISION

VERSIONS = sorted((MIGRATIONS / "versions").glob("[0-9]*.py"))

ADDS = {"create_table", "create_index", "add_column", "create_table_comment"}
CONTRACTS = {
    "drop_table", "drop_column", "drop_index", "drop_table_comment", "rename_table",
    "create_check_constraint", "create_unique_constraint", "create_foreign_key", "create_primary_key", "create_exclude_constraint",
}  # fmt: skip
# In the text of statements. An object that is recreated under its name was only changed.
SQL_ADDS = re.compile(r"\b(CREATE|ADD COLUMN|INSERT INTO|GRANT)\b", re.I)
SQL_CONTRACTS = re.compile(
    r"\bDROP\s+(?!NOT\s+NULL|DEFAULT)(?P<what>[A-Z]+(?:\s+VIEW)?)\s+(?:IF\s+EXISTS\s+)?(?P<name>\w*)"
    r"|\bRENAME\b|\bSET\s+NOT\s+NULL\b|\bALTER\s+COLUMN\s+\w+\s+(?:SET\s+DATA\s+)?TYPE\b|\bADD\s+(?:CONSTRAINT|CHECK|UNIQUE|FOREIGN)\b|\bREVOKE\b",
    re.I,
)

STATEMENT = re.compile(r"\s*(?:CREATE|ALTER|DROP|GRANT|REVOKE|INSERT|UPDATE|DELETE|DO|SET|WITH|SELECT)\s")


def upgrade_of(source: str) -> ast.FunctionDef:
    module = ast.parse(source)
    return next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "upgrade")


def assigned(source: str, name: str) -> str | None:
    """The value of a constant of the module."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in node.targets
        ):
            return str(ast.literal_eval(node.value))
    return None


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def contractions(source: str) -> Iterator[str]:
    """The parts of a migration's upgrade that remove or demand something."""
    upgrade = upgrade_of(source)
    for call in (node for node in ast.walk(upgrade) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        given = _keywords(call)
        if name in CONTRACTS:
            yield name
        if name == "alter_column" and (
            "new_column_name" in given or "type_" in given or _is(given.get("nullable"), False)
        ):
            yield f"alter_column {', '.join(given)}"
        if name == "add_column":
            for column in (each for each in call.args if isinstance(each, ast.Call)):
                keywords = _keywords(column)
                if _is(keywords.get("nullable"), False) and "server_default" not in keywords:
                    yield "add_column that is not null and has no default"
    text = sql(source)
    for found in SQL_CONTRACTS.finditer(text):
        what, name = found["what"], found["name"]
        if what and re.search(rf"\bCREATE\s+(?:OR\s+REPLACE\s+)?{what}\s+{name}\b", text, re.I):
            continue
        yield found[0]


def expansions(source: str) -> Iterator[str]:
    """The parts of a migration's upgrade that add something."""
    for call in (node for node in ast.walk(upgrade_of(source)) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ADDS:
            yield call.func.attr
    text = sql(source)
    again = {found["name"].lower() for found in SQL_CONTRACTS.finditer(text) if found["name"]}
    for found in SQL_ADDS.finditer(text):
        made = re.match(r"CREATE\s+(?:OR\s+REPLACE\s+)?\w+\s+(\w+)", text[found.start() :], re.I)
        if made is None or made[1].lower() not in again:
            yield found[0]


def sql(source: str) -> str:
    """The statements in the upgrade and in the code above it, with those of the files that they name; without quoted text and comments."""
    module = ast.parse(source)
    strings = []
    for body in module.body[1:]:  # without the docstring
        if isinstance(body, ast.FunctionDef) and body.name == "downgrade":
            continue
        for node in ast.walk(body):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = (part.value for part in node.values if isinstance(part, ast.Constant))
                strings.append("x".join(map(str, parts)))
    files = [
        (MIGRATIONS / "sql" / text).read_text() for text in strings if re.fullmatch(r"[\w.]+\.sql", text)
    ]
    statements = [text for text in strings if STATEMENT.match(text)]
    return re.sub(r"--[^\n]*|'(?:[^']|'')*'", "''", "\n".join([*statements, *files]))


def test_revisions_are_four_digits_one_after_the_other_so_that_they_compare_as_text() -> None:
    found = [
        (assigned(path.read_text(), "revision"), assigned(path.read_text(), "down_revision"))
        for path in VERSIONS
    ]
    counted = [f"{int(FIRST) + n:04}" for n in range(len(VERSIONS))]
    assert [revision for revision, _ in found] == counted and counted[-1] == REVISION
    assert [before for _, before in found] == ["None", *counted[:-1]]
    assert [path.name[:4] for path in VERSIONS] == counted


def faults(source: str) -> Iterator[str]:
    """A migration's violations of the rule."""
    taken, added = list(contractions(source)), list(expansions(source))
    oldest = assigned(source, "oldest_code")
    if taken and oldest is None:
        yield f'it contracts ({taken}): say oldest_code = "NNNN", which code may still run'
    if taken and added:
        yield f"it contracts ({taken}) and expands ({added}): make two revisions of it"
    if oldest is not None and not taken:
        yield "it says oldest_code and takes nothing away"
    if oldest is not None and not (
        re.fullmatch(r"\d{4}", oldest) and FIRST <= oldest <= (assigned(source, "revision") or "")
    ):
        yield f"its oldest_code is {oldest}: no revision from {FIRST} to its own"


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_migration_that_contracts_says_so_and_adds_nothing(path: Path) -> None:
    assert list(faults(path.read_text())) == []


def test_the_first_migration_is_read_with_its_sql_files() -> None:
    source = VERSIONS[0].read_text()
    assert {"CREATE", "GRANT", "INSERT INTO"} <= set(expansions(source))
    assert "CREATE VIEW window_state" in sql(source)


LATER = f"{int(REVISION) + 1:04}"


def a_migration(*lines: str, oldest: str | None = None) -> str:
    """The next migration."""
    body = "\n".join(f"    {line}" for line in lines)
    head = f'"""What."""\n\nimport sqlalchemy as sa\nfrom alembic import op\n\nrevision = "{LATER}"\n'
    head += f'oldest_code = "{oldest}"\n\n\n' if oldest else "\n\n"
    return f'{head}def upgrade() -> None:\n{body}\n\n\ndef downgrade() -> None:\n    op.drop_table("x")\n'


@pytest.mark.parametrize(
    "line",
    [
        'op.drop_column("queue", "shares")',
        'op.drop_index("groups_dead", "groups")',
        'op.rename_table("queue", "line")',
        'op.alter_column("queue", "shares", nullable=False)',
        'op.alter_column("queue", "shares", new_column_name="weights")',
        'op.add_column("queue", sa.Column("shares", sa.Text(), nullable=False))',
        'op.create_unique_constraint("one", "queue", ["run_id"])',
        'op.execute("ALTER TABLE queue DROP COLUMN shares")',
        'op.execute("ALTER TABLE queue ALTER COLUMN shares SET NOT NULL")',
        'op.execute("DROP VIEW IF EXISTS window_state")',
        'op.execute("ALTER TABLE queue RENAME COLUMN shares TO weights")',
        'op.execute("REVOKE SELECT ON queue FROM penstock_reader")',
    ],
)
def test_what_old_code_could_not_bear_is_seen_as_a_contraction(line: str) -> None:
    assert list(contractions(a_migration(line)))


@pytest.mark.parametrize(
    "line",
    [
        'op.add_column("queue", sa.Column("shares", sa.Text()))',
        'op.add_column("queue", sa.Column("shares", sa.Text(), nullable=False, server_default="x"))',
        'op.create_index("groups_dead", "groups", ["run_id"])',
        'op.execute("CREATE OR REPLACE VIEW window_state AS SELECT 1 AS one")',
    ],
)
def test_what_only_adds_is_an_expansion(line: str) -> None:
    assert not list(contractions(a_migration(line))) and list(expansions(a_migration(line)))


def test_what_is_dropped_and_made_again_under_its_name_was_only_changed() -> None:
    source = a_migration(
        'op.execute("DROP VIEW window_state; CREATE VIEW window_state AS SELECT 1 AS one, 2 AS two")'
    )
    assert not list(contractions(source)) and not list(expansions(source))
    relaxed = a_migration('op.execute("ALTER TABLE queue ALTER COLUMN shares DROP NOT NULL")')
    assert not list(contractions(relaxed))


ADDS_ONE = 'op.add_column("queue", sa.Column("weights", sa.Text()))'
TAKES_ONE = 'op.drop_column("queue", "shares")'


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        (a_migration(ADDS_ONE), []),
        (a_migration(TAKES_ONE, oldest=REVISION), []),
        (a_migration(TAKES_ONE, oldest=LATER), []),
        (a_migration(TAKES_ONE), ["say oldest_code"]),
        (a_migration(ADDS_ONE, TAKES_ONE, oldest=REVISION), ["make two revisions of it"]),
        (a_migration(ADDS_ONE, TAKES_ONE), ["say oldest_code", "make two revisions of it"]),
        (a_migration(ADDS_ONE, oldest=REVISION), ["takes nothing away"]),
        (a_migration(TAKES_ONE, oldest="9999"), ["no revision from"]),
        (a_migration(TAKES_ONE, oldest="0016"), ["no revision from"]),
        (a_migration(TAKES_ONE, oldest="one"), ["no revision from"]),
    ],
)
def test_a_next_migration_that_breaks_the_rule_is_found(source: str, wrong: list[str]) -> None:
    found = list(faults(source))
    assert len(found) == len(wrong) and all(
        part in violation for part, violation in zip(wrong, found, strict=True)
    )
