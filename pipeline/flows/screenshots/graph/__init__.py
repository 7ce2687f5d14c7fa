"""The graph of nodes: tables, writing, merges, vectors, full text and search."""
