"""Mechanisms, one idea a file. Knows Redis and SQLAlchemy, but no flow, no provider and no Celery."""
