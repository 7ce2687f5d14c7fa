"""Programs that measure, each printing a table; never timed tests. `python -m benchmarks.documents`."""
