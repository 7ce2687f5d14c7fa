"""Prometheus metrics from the database and Redis, so restarts lose nothing: docs/reference/metrics.md."""
