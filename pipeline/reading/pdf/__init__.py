"""PDF files, and the pages of documents as blocks and Markdown."""
