"""The levels of tasks that `penstock tasks vet` found, and the reports.

Revision: 0102.
"""

from alembic import op

revision = "0102"
down_revision = "0101"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE vettings (
  run_id integer NOT NULL REFERENCES runs,
  sha bytea NOT NULL,
  level text NOT NULL,
  times smallint NOT NULL,
  provider text NOT NULL,
  version smallint NOT NULL,
  report jsonb,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (run_id, sha),
  CONSTRAINT vettings_level CHECK (level IN ('none', 'well-formed', 'builds', 'controls-hold', 'vetted'))
)"""
RIGHTS = "GRANT SELECT ON vettings TO penstock_reader, penstock_gateway, penstock_runner, penstock_trainer"


def upgrade() -> None:
    op.execute(TABLE)
    op.execute(RIGHTS)


def downgrade() -> None:
    op.drop_table("vettings")
