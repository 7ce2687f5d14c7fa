"""What Prometheus reads: figures from the database and Redis, so that restarts lose nothing. See docs/metrics.md."""
