"""Alembic's entry: runs the migrations on the connection that `pipeline.storage.schema` gives."""

from alembic import context

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes.get("metadata"),
    render_as_batch=True,
    user_module_prefix="tables.",
)
with context.begin_transaction():
    context.run_migrations()
