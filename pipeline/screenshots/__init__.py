"""Screenshots: captured, batched, looked at by a vision model, expanded into nodes, merged by thread, searchable."""
