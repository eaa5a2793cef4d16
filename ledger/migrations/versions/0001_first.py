"""The first schema: tables, triggers, doors, rights."""

from importlib.resources import files

from alembic import op

revision = "0001"
down_revision = None

_PARTS = ("0001_a_tables.sql", "0001_b_triggers.sql", "0001_c_functions.sql", "0001_d_rights.sql")


def upgrade() -> None:
    """Runs the four files, and makes the partitions of the next months."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
    op.get_bind().exec_driver_sql("SELECT counterfoil.make_partitions(2)")
