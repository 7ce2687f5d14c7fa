"""The command line: `penstock`. Imports wait for the command that needs them, so that `--help` is quick."""

from pipeline.interfaces.cli.main import main

__all__ = ["main"]
