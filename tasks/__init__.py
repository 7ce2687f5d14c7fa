"""How the pipeline runs on Celery (`penstock worker -Q …`), and Python's way in (`tasks.documents`)."""

import os
import sys

_given = sys.path[:]
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
try:
    # `celery -A tasks` puts the folder one stands in before everything else, and what lies there is not ours.
    from pipeline.engine import search_path

    search_path.clean()
    from tasks.app import app
finally:
    sys.path[:] = _given

__all__ = ["app"]
