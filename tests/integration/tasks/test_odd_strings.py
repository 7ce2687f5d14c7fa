"""Unusual strings as arguments of every operation: each call gets an answer or a refusal, never a crash."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import update

from pipeline.engine.errors import MAX_MESSAGE_CHARS, PenstockError
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.music.library import songs as library
from pipeline.flows.music.library.songs import SongTags
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.queries import songs as songs_with
from pipeline.storage.context import Context
from tasks import calls, documents, knowledge, music, queues, screenshots, webhooks
from tests.support.samples import text_pdf

pytestmark = pytest.mark.both_databases

LONG = "Long 100 %_\\ " * 5_000 + "end"
"""65,000 characters: more than a pattern of LIKE may have on SQLite."""
ODD = (LONG, "caf\udce9.pdf", "half \ud83d", "a\0b", "%", "\\", "' OR 1=1 --", "\x1b[31m\u202e", " ")


def test_every_operation_answers_or_refuses_odd_strings(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "report.pdf", [["one"]])
    document = documents.submit(tmp_path / "report.pdf").id
    base = knowledge.create_base("manuals").id
    for text in ODD:
        for ask in _questions(text, document, base, tmp_path):
            try:
                ask()
            except PenstockError as error:
                assert 0 < len(str(error)) <= MAX_MESSAGE_CHARS  # noqa: PT017  # a refusal is one of two good ends
    assert context.db.now()


def _questions(text: str, document: str, base: str, folder: Path) -> list[Callable[[], object]]:
    a = documents.Filter(name=text)
    at = datetime.now(UTC)
    return [
        lambda: documents.status(text),
        lambda: documents.several([text]),
        lambda: documents.list_documents(which=a),
        lambda: documents.count_documents(a),
        lambda: documents.search(text),
        lambda: documents.search("one", a),
        lambda: documents.search("one", document_id=text),
        lambda: documents.retry(document, provider=text),
        lambda: documents.retry(document, model=text),
        lambda: documents.delete(text),
        lambda: documents.cancel(text),
        lambda: documents.submit(folder / "report.pdf", page_range=text),
        lambda: documents.submit(folder / "report.pdf", provider=text),
        lambda: documents.submit(folder / text[:100]),
        lambda: music.show(text),
        lambda: music.search(text),
        lambda: music.similar(text),
        lambda: screenshots.search(text),
        lambda: screenshots.search("one", app=text),
        lambda: screenshots.timeline(thread=text),
        lambda: screenshots.rejections(source=text),
        lambda: screenshots.set_active(text, active=False),
        lambda: screenshots.replay(text),
        lambda: knowledge.create_base(text),
        lambda: knowledge.create_base(f"b{hash(text)}", description=text),
        lambda: knowledge.edit_base(base, description=text),
        lambda: knowledge.base(text),
        lambda: knowledge.add_urls(base, text),
        lambda: knowledge.add_files(base, text[:100]),
        lambda: knowledge.add_notes(base, text),
        lambda: knowledge.item(text),
        lambda: knowledge.items(text),
        lambda: knowledge.items(base, group_id=text),
        lambda: knowledge.search(base, text),
        lambda: knowledge.search(text, "one"),
        lambda: knowledge.cancel(text),
        lambda: knowledge.delete(text),
        lambda: knowledge.add(base, [knowledge.Source(knowledge.ItemType.NOTE, text="A note.", name=text)]),
        lambda: knowledge.add_directory(base, folder / text[:100]),
        lambda: knowledge.group_id(base, text),
        lambda: calls.list_calls(model=text),
        lambda: calls.stats("day", scope_id=text),
        lambda: queues.queue(text),
        lambda: queues.pause(text, None, text),
        lambda: queues.change_setting(text, text),
        lambda: queues.breaker(text),
        lambda: webhooks.create(f"https://example.com/{text}"),
        lambda: webhooks.create("https://example.com/", [text]),
        lambda: webhooks.create("https://example.com/", [], text),
        lambda: webhooks.remove(text),
        lambda: webhooks.replay_range(text, at),
    ]


def test_a_title_of_sixty_thousand_characters_matches(context: Context, tmp_path: Path) -> None:
    now = context.db.now()
    tags = [SongTags("a", "So What", "Miles Davis"), SongTags("b", "Sö What", "Björk")]
    context.db.run(lambda session: library.store(session, library.FOLDER, tags, now))
    assert music.show("so what").title == music.show("MILES DAVIS - so what").title == "So What"
    assert music.show("Sö What").artist == "Björk"
    if context.db.is_sqlite:  # a title as an older version stored it; PostgreSQL refuses it
        context.db.run(
            lambda session: session.execute(update(SONGS).values(title=LONG).where(SONGS.c.server_id == "b"))
        )
        assert music.show(LONG).artist == "Björk"
        assert [song.artist for song in songs_with(context, words=LONG[5:64_000])] == ["Björk"]
    assert [song.title for song in songs_with(context, words="100%")] == []
    assert [song.title for song in songs_with(context, words="DAVIS")] == ["So What"]


def test_a_part_of_a_file_s_name_is_matched_literally(context: Context, tmp_path: Path) -> None:
    text_pdf(tmp_path / "Größe 100%_x.pdf", [["one"]])
    document = documents.submit(tmp_path / "Größe 100%_x.pdf").id
    for name, count in (("größe", 1), ("GR", 1), ("Größe", 1), ("0%_X", 1), ("0__", 0), ("%", 1), (LONG, 0)):
        assert len(documents.list_documents(which=documents.Filter(name=name))) == count, name
    context.db.run(
        lambda session: session.execute(update(DOCUMENTS).values(filename="a").where(DOCUMENTS.c.id == document))
    )
    assert not documents.list_documents(which=documents.Filter(name="100"))
