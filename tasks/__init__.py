"""How the pipeline runs on Celery (`celery -A tasks worker -Q …`), and Python's way in (`tasks.documents`)."""

from tasks.app import app

__all__ = ["app"]
