"""Read PDF files, and turn pages of documents into blocks and Markdown."""
