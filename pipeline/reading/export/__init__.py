"""Converted pages in other projects' formats: DoclingDocument, DocTags, HTML and plain text."""
