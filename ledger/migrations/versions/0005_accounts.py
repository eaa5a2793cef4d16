"""Accounts of tenants at providers."""

from importlib.resources import files

from alembic import op

revision = "0005"
down_revision = "0004"

_PARTS = ("0005_a_accounts.sql", "0005_b_webhooks.sql", "0005_c_reach.sql")


def upgrade() -> None:
    """Runs the files in order."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
