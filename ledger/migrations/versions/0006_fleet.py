"""One fleet: live settings, modes of providers, dead wake-ups, health, alarms and the watch."""

from importlib.resources import files

from alembic import op

revision = "0006"
down_revision = "0005"

_PARTS = ("0006_a_fleet.sql", "0006_b_watch.sql", "0006_c_alarms.sql", "0006_d_doors.sql")


def upgrade() -> None:
    """Runs the files in order."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
