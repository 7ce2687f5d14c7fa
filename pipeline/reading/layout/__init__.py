"""Reconstruct the layout of a page from its lines, rules and pictures: `page.convert`."""
