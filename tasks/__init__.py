"""The pipeline's Celery application (`penstock worker -Q …`) and its Python API (`tasks.documents`)."""

import os
import sys

_given = sys.path[:]
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
try:
    # Never import a `pipeline` from the current folder.
    from pipeline.engine import search_path  # noqa: F401
finally:
    sys.path[:] = _given
