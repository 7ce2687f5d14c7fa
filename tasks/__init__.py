"""How the pipeline runs on Celery (`penstock worker -Q …`), and Python's way in (`tasks.documents`)."""

import os
import sys

_given = sys.path[:]
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
try:
    # A `pipeline` in the folder one stands in is not ours.
    from pipeline.engine import search_path  # noqa: F401
finally:
    sys.path[:] = _given
