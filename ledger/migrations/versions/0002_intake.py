"""Intents from other languages, child runs, and how often a step was rejected."""

from importlib.resources import files

from alembic import op

revision = "0002"
down_revision = "0001"

_PARTS = ("0002_a_intake.sql", "0002_b_runs.sql")


def upgrade() -> None:
    """Runs the two files."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
