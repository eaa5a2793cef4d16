"""What callers have been told: ends and how often they changed, references within turns, notes for approvers."""

from importlib.resources import files

from alembic import op

revision = "0007"
down_revision = "0006"

_PARTS = ("0007_told.sql",)


def upgrade() -> None:
    """Runs the files in order."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
