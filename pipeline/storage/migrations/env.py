"""Alembic's entry: runs the migrations on the connection that it is given."""

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
