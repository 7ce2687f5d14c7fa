"""Mechanisms, one idea a file. They use Redis and SQLAlchemy, and import no flow, no provider and no Celery."""
