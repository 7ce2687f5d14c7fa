"""Pure rules: progress, workload, the text to embed, and batches of chunks."""
