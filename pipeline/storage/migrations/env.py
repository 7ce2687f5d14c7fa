"""Alembic's entry: runs the migrations on the connection that `pipeline.storage.schema` gives."""

from alembic import context

from pipeline.storage.schema import is_managed

attributes = context.config.attributes
context.configure(
    connection=attributes["connection"],
    target_metadata=attributes.get("metadata"),
    render_as_batch=True,
    user_module_prefix="tables.",
    include_name=is_managed,
)
with context.begin_transaction():
    context.run_migrations()
