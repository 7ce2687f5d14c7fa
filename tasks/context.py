"""The context for Python's way in: like a command, it works without `penstock up` or `penstock migrate` before it."""

from pipeline.flows import check_sections
from pipeline.storage import context as storage
from pipeline.storage.context import Context
from pipeline.storage.schema import ensure

_READY = "schema.ensured"


def get_context() -> Context:
    """The context of this process. An embedded database gets its schema on first use.

    Raises `UserError` if the database of a server lacks this version's.
    """
    context = storage.get_context()
    if _READY not in context.made:
        check_sections(context.settings)
        ensure(context)
        context.made[_READY] = True
    return context
