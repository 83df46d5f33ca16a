"""The parts of the data pool's tables: names of constraints, shared columns, and conditions on them."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    any_,
    bindparam,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

# Vacuum removes dead row versions before a table has doubled, however long its history is.
CHURNS = {"autovacuum_vacuum_scale_factor": "0.01", "autovacuum_vacuum_threshold": "2000"}

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def one_of(column: str, values: type[StrEnum] | Iterable[str], name: str | None = None) -> CheckConstraint:
    """A check that a text column holds one of `values`."""
    quoted = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({quoted})", name=name or column)


def identity(name: str, comment: str) -> Column[int]:
    """The generated key of a table."""
    return Column(name, BigInteger, Identity(always=False), primary_key=True, comment=comment)


def run(comment: str = "the run that the row belongs to") -> Column[int]:
    """The run that a row belongs to."""
    return Column("run_id", Integer, ForeignKey("runs.run_id"), nullable=False, comment=comment)


def now(name: str, comment: str) -> Column[object]:
    """The creation time of the row, by the database's clock."""
    current_time = func.clock_timestamp()
    return Column(name, DateTime(timezone=True), nullable=False, server_default=current_time, comment=comment)


def moment(name: str, comment: str) -> Column[object]:
    """The time of an event, null until then."""
    return Column(name, DateTime(timezone=True), comment=comment)


def in_state(state: ColumnElement[str], *states: StrEnum) -> ColumnElement[bool]:
    """The condition that a state is one of `states`, written into the SQL itself. A plan that is kept for all values of a parameter cannot use
    an index over the rows of one state, and would scan all of history for the few open rows."""
    return state.in_(
        bindparam(None, [str(member) for member in states], expanding=True, literal_execute=True)
    )


def among(key: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """The condition that a key is one of `values`, passed as one parameter, however many: a statement takes 32,767 parameters."""
    return key == any_(literal(list(values), ARRAY(key.type)))


def among_pairs(
    first: ColumnElement[int], second: ColumnElement[int], pairs: Collection[tuple[int, int]]
) -> ColumnElement[bool]:
    """As `among`, for a key of two columns: two parameters."""
    columns = zip(*pairs, strict=True) if pairs else ((), ())
    arrays = (literal(list(ids), ARRAY(key.type)) for key, ids in zip((first, second), columns, strict=True))
    given = func.unnest(*arrays).table_valued("first", "second").render_derived()
    return tuple_(first, second).in_(select(given.c.first, given.c.second))
