"""`penstock convert`: files in, Markdown out."""

from pipeline.interfaces.cli.convert import command

__all__ = ["command"]
