"""Pure functions: no database, no Redis, no Celery, no provider."""
