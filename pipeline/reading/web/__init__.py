"""Fetch web pages and sitemaps from public addresses alone, and read them as text."""
