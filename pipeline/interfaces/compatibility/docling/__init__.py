"""docling-serve's API, version 1: its clients work against Penstock with nothing but another address."""
