"""Reads PDFs and pictures: text layer, text recognition and layout become blocks, and blocks become Markdown."""
