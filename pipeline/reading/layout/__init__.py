"""The layout of a page, found in its lines, rules and pictures: `page.convert`."""
