"""The application, where `celery -A tasks` looks for it. Python's way in loads it when there is something to send."""

import sys

from pipeline.engine import search_path

_given = sys.path[:]
# `celery -A tasks` puts the folder one stands in before everything else, and what lies there is not ours.
search_path.clean()
try:
    from tasks.app import app
finally:
    sys.path[:] = _given

__all__ = ["app"]
