"""Programs that measure Penstock and print a table, such as `python -m benchmarks.documents`. No test checks times."""
