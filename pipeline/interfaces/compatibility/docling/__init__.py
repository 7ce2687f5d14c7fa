"""docling-serve's API, version 1: its clients work against Penstock once their address changes."""
