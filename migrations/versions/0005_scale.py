"""A store that lasts: what a run's trajectories take can be dropped at once, and the hot tables stay small.

Messages and prompts are partitioned by run as steps are. Heartbeats touch no index: leases are found by the state of their rollout. What
every claim asks of batches has an index.

Revision: 0005.
"""

from pathlib import Path

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SQL = Path(__file__).resolve().parents[1] / "sql"
ROLES = "penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"
COLUMNS = {
    "messages": """run_id integer NOT NULL, rollout_id bigint NOT NULL, attempt smallint NOT NULL, idx integer NOT NULL, appended jsonb NOT NULL,
                   reply jsonb NOT NULL, CONSTRAINT messages_pkey PRIMARY KEY (run_id, rollout_id, attempt, idx)""",
    "prompts": """run_id integer NOT NULL, sha bytea NOT NULL, n integer NOT NULL, ids bytea NOT NULL,
                  CONSTRAINT prompts_pkey PRIMARY KEY (run_id, sha),
                  CONSTRAINT prompts_sha CHECK (length(sha) = 32), CONSTRAINT prompts_ids CHECK (length(ids) = 4 * n)""",
}
# Dead versions are gone again before a table has doubled, however large its dead past is.
HOT = {
    "rollouts": {"autovacuum_vacuum_scale_factor": "0.01", "autovacuum_vacuum_threshold": "2000"},
    "queue": {"autovacuum_vacuum_threshold": "500"},
    "outbox": {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.01", "autovacuum_vacuum_threshold": "2000"},
    "counters": {"fillfactor": "50", "autovacuum_vacuum_threshold": "500"},
}  # fmt: skip


def _scripts(name: str) -> list[str]:
    return (SQL / name).read_text().split("\n--;\n")


def _remake(partition_by: str, open_partition: str) -> None:
    """Make messages and prompts anew, with their rows. The view that reads messages is kept as it is."""
    connection = op.get_bind()
    view = connection.exec_driver_sql("SELECT pg_get_viewdef('trajectory'::regclass)").scalar_one()
    says = connection.exec_driver_sql("SELECT obj_description('trajectory'::regclass, 'pg_class')").scalar_one()  # fmt: skip
    connection.exec_driver_sql("DROP VIEW trajectory")
    connection.exec_driver_sql("CREATE SCHEMA before")  # names of constraints are free again in public
    for name in COLUMNS:
        connection.exec_driver_sql(f"ALTER TABLE {name} SET SCHEMA before")
        connection.exec_driver_sql(f"CREATE TABLE {name} ({COLUMNS[name]}){partition_by}")
        connection.exec_driver_sql(
            f"CREATE TRIGGER {name}_immutable BEFORE UPDATE OR DELETE ON {name} FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        connection.exec_driver_sql(
            f"CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON {name} EXECUTE FUNCTION refuse_change()"
        )
        connection.exec_driver_sql(f"GRANT SELECT ON {name} TO {ROLES}")
        comment = connection.exec_driver_sql(f"SELECT obj_description('before.{name}'::regclass, 'pg_class')")
        op.create_table_comment(name, comment.scalar_one())
    for statement in _scripts(open_partition):
        connection.exec_driver_sql(statement)
    for name in COLUMNS:
        if partition_by:
            connection.exec_driver_sql(f"SELECT open_partition_of('{name}', run_id) FROM runs")
        connection.exec_driver_sql(f"INSERT INTO {name} SELECT * FROM before.{name}")
        connection.exec_driver_sql(f"DROP TABLE before.{name}")
    connection.exec_driver_sql("DROP SCHEMA before")
    connection.exec_driver_sql(f"CREATE VIEW trajectory AS {view}")
    connection.exec_driver_sql(f"GRANT SELECT ON trajectory TO {ROLES}")
    quoted = str(says).replace("'", "''")
    connection.exec_driver_sql(f"COMMENT ON VIEW trajectory IS '{quoted}'")


def upgrade() -> None:
    op.add_column("runs", sa.Column("pruned", sa.DateTime(timezone=True), nullable=True))
    _remake(" PARTITION BY LIST (run_id)", "0005_partitions.sql")
    op.drop_index("rollouts_lease", table_name="rollouts")
    op.create_index("batches_state", "batches", ["run_id", "state"], postgresql_include=["size"])
    for table, settings in HOT.items():
        op.execute(f"ALTER TABLE {table} SET ({', '.join(f'{k} = {v}' for k, v in settings.items())})")


def downgrade() -> None:
    for table, settings in HOT.items():
        op.execute(f"ALTER TABLE {table} RESET ({', '.join(settings)})")
    op.drop_index("batches_state", table_name="batches")
    op.create_index(
        "rollouts_lease", "rollouts", ["lease_until"], postgresql_where=sa.text("lease_until IS NOT NULL")
    )
    _remake("", "0005_one_partition.sql")
    op.execute("DROP FUNCTION open_partition_of(text, int)")
    op.drop_column("runs", "pruned")
