"""People in the loop: proposals, approvals, reviews, corrections; pivots, effect scopes, resource versions."""

from importlib.resources import files

from alembic import op

revision = "0004"
down_revision = "0003"

_PARTS = (
    "0004_a_people.sql",
    "0004_b_gates.sql",
    "0004_c_propose.sql",
    "0004_d_decide.sql",
    "0004_e_review.sql",
    "0004_f_corrections.sql",
    "0004_g_rights.sql",
    "0004_h_results.sql",
    "0004_i_waiting.sql",
)


def upgrade() -> None:
    """Runs the files in order: tables, gates, the doors of agents, of people, of workers, rights."""
    folder = files("counterfoil.ledger.migrations") / "sql"
    for part in _PARTS:
        op.get_bind().exec_driver_sql((folder / part).read_text(encoding="utf-8").replace("%", "%%"))
