"""Web pages and sitemaps: fetched from public addresses alone, and read as text."""
