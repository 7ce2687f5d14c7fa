"""Python programs of the collection: a user's and an attacker's."""

import glob
import os
import socket

ASKING = """
import json, sys
from pipeline.engine.errors import PenstockError
from tasks import documents, knowledge, music, screenshots, webhooks

calls = {
    "documents.search": documents.search, "documents.status": documents.status, "documents.submit": documents.submit,
    "documents.Filter": lambda text: documents.list_documents(which=documents.Filter(name=text)),
    "documents.pages": lambda text: documents.submit("good.pdf", page_range=text),
    "documents.model": lambda text: documents.submit("good.pdf", provider=text),
    "knowledge.search": lambda text: knowledge.search(None, text), "knowledge.base": knowledge.base,
    "knowledge.create_base": knowledge.create_base,
    "knowledge.add_files": lambda text: knowledge.add_files("manuals", text),
    "knowledge.add_urls": lambda text: knowledge.add_urls("manuals", text),
    "knowledge.add_notes": lambda text: knowledge.add_notes("manuals", text),
    "music.search": music.search, "music.show": music.show, "music.similar": music.similar,
    "screenshots.search": screenshots.search,
    "screenshots.ingest": lambda text: screenshots.ingest("good.png", source=text),
    "screenshots.app": lambda text: screenshots.search("words", app=text),
    "screenshots.set_active": lambda text: screenshots.set_active(text, True),
    "webhooks.create": webhooks.create,
    "webhooks.description": lambda text: webhooks.create("https://example.com/", (), text),
    "webhooks.endpoint": webhooks.endpoint,
}
wrong = []
for name, text in json.load(sys.stdin).items():
    for called, call in calls.items():
        try:
            call(text)
        except PenstockError as error:
            if not str(error) or len(str(error)) > 2000:
                wrong.append(f"{called}({name}) says {len(str(error))} characters")
        except Exception as error:
            wrong.append(f"{called}({name}) raises {type(error).__name__}: {ascii(str(error)[:200])}")
print("\\n".join(wrong))
"""
"""Passes every given string to every call of the Python API, and prints the faults."""

NOBODY = 65_534


def as_nobody(act: str, names: dict[str, str]) -> bool:
    """Whether a Python expression succeeds in a forked process of another user instead of raising `OSError`."""
    process = os.fork()
    if process == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            eval(act, {"glob": glob, "os": os, "connect": _connect, **names})
        except OSError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0


def _connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
