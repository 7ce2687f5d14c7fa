"""Stored files that no row owns: what a process left that was killed between a file and its row."""

import time
from contextlib import suppress

from sqlalchemy import select

from pipeline.engine.tables import portions
from pipeline.flows.knowledge import files
from pipeline.flows.knowledge.models import ITEMS
from pipeline.storage import installation
from pipeline.storage.context import Context


def remove_orphans(context: Context) -> int:
    """Remove them once they are old enough; how many. None if the folder is not this database's."""
    root, removed = files.root(context.settings), 0
    if not root.is_dir() or not installation.belong_together(context):
        return 0
    before = time.time() - context.settings.documents.stale_temp_s
    for some in portions(root.iterdir()):
        with context.db.read() as session:
            query = select(ITEMS.c.id).where(ITEMS.c.id.in_([entry.name for entry in some]))
            known = set(session.execute(query).scalars())
        for entry in some:
            with suppress(FileNotFoundError):
                if entry.name not in known and entry.lstat().st_mtime < before:
                    files.discard(entry)
                    removed += 1
    return removed
