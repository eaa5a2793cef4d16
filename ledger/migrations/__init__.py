"""Alembic's migrations of the ledger: forward only, additive first; the SQL stands in `sql/`."""
