"""The parts of the data pool's tables: names of constraints, shared columns, and conditions on them."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

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


def among(key: ColumnElement[int], ids: Sequence[int]) -> ColumnElement[bool]:
    """The condition that a key is one of `ids`, passed as one parameter, however many."""
    return key == any_(literal(list(ids), ARRAY(BigInteger)))
