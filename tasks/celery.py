"""The application, where `celery -A tasks` expects it. The Python API imports it when it first sends a message."""

import sys

from pipeline.engine import search_path

_given = sys.path[:]
# `celery -A tasks` puts the current folder first on the path, where other modules may have our names.
search_path.clean()
try:
    from tasks.app import app
finally:
    sys.path[:] = _given

__all__ = ["app"]
