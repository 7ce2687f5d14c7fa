"""Pure rules: progress, workload, and how texts are named and put into batches."""
