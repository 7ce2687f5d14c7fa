"""Alembic's entry point: run the migrations on the given connection."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes.get("metadata"),
    include_name=attributes.get("include_name"),
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
