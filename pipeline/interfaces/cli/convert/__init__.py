"""`penstock convert` and `penstock watch`: files in, Markdown out."""

from pipeline.interfaces.cli.convert import command, inbox

__all__ = ["command", "inbox"]
