"""What Penstock does. Knows nothing of Celery, but for the entry points `cli`, `standalone` and `api`."""
