"""Runs the migrations on the connection that `counterfoil.ledger.migrate` hands over, as the ledger's owner."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=None,
    version_table="schema_version",
    version_table_schema="counterfoil",
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
