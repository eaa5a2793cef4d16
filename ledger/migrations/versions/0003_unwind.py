"""Cancels that history tells, and unwinds that take child runs along and end where a person has decided."""

from importlib.resources import files

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Replaces four doors, and adds the triggers that open an unwind again."""
    text = (files("counterfoil.ledger.migrations") / "sql" / "0003_unwind.sql").read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(text.replace("%", "%%"))
