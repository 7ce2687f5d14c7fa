"""Pure functions, without database, Redis, Celery or provider."""
