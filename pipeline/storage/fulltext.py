"""Full-text search, the same on both databases: Penstock makes the terms, FTS5 and tsvector store and rank them.

Chinese has no spaces, and neither database's tokenizer knows its words. FTS5's `trigram` finds nothing for queries of
fewer than three characters, and most Chinese words have two; PostgreSQL's core has no such tokenizer. So runs of CJK
characters become overlapping pairs, which are searched as a phrase: 数据库 is 数据 next to 据库. The last character of
a run is also a term by itself, so that a single character matches as the start of a term.

Other letters lose their accents: "bjork" finds Björk. Older index entries still have accents, so a query searches for
both.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    String,
    TextClause,
    bindparam,
    column,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.orm import Session

from pipeline.engine.transaction import Tx
from pipeline.storage.database import Database
from pipeline.storage.letters import plain
from pipeline.storage.lists import one_of

CJK = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_TERM = re.compile(f"[{CJK}]+|(?:(?![{CJK}])[^\\W_])+")
_IS_CJK = re.compile(f"[{CJK}]")
_LONGEST_TERM = 64
_MOST = {"head": 1000, "apps": 200, "body": 8000}
SHORTEST_PREFIX = 3
_MOST_LOOSE = 8
_MOST_WORDS, _LONGEST_WORD = 32, 200
_MOST_BYTES = 800_000
"""The most bytes of one item's terms: a tsvector holds a million, overhead included."""
_PORTION = 500
_MANY_SCOPES = 64
"""Beyond this number of scopes, a list of their items is faster than their terms."""
_MERGED_PAGES, _FEWEST_CHANGES = 500, 2


@dataclass(frozen=True)
class Text:
    """The texts of an item. `head` weighs most; `apps`: where it was seen; `body`: what was read there."""

    item_id: int
    head: str
    apps: str
    body: str


def terms(words: str, most: int = 10_000) -> list[str]:
    """Return the terms under which a text is indexed, in order, at most `most`: words, cut to `_LONGEST_TERM`
    characters, without case and accents; of CJK, each pair of characters, then the last character alone."""
    result: list[str] = []
    for match in _TERM.finditer(plain(_folded(words))):
        run = match.group()
        if not _IS_CJK.match(run):
            result.append(run[:_LONGEST_TERM])
        else:
            result += [run[i : i + 2] for i in range(len(run))]
        if len(result) >= most:
            break
    return result[:most]


def _folded(words: str) -> str:
    return unicodedata.normalize("NFKC", words).casefold()


def looser(words: str) -> list[str]:
    """Return queries, perhaps none, to try with `any_word`, one after the other, while a question's words find too
    little.

    First its longest words, which say most; then pairs of CJK characters, for text without spaces.
    """
    all_words = words.split()
    long_words = [word for word in all_words if len(word) > SHORTEST_PREFIX or _IS_CJK.search(word)]
    first = sorted(dict.fromkeys(long_words or all_words), key=len, reverse=True)[:_MOST_LOOSE]
    pairs = [term for term in dict.fromkeys(terms(words)) if len(term) > 1 and _IS_CJK.match(term)][:_MOST_LOOSE]
    queries = [" ".join(first)] if len(all_words) > 1 else []
    return queries + ([" ".join(pairs)] if len(pairs) > len(all_words) else [])


def _spellings(words: Sequence[str]) -> list[list[tuple[list[str], bool]]]:
    """Return the phrases for each word of a query: without accents, and also as written if it has any."""
    both = ((plain(word), word) for word in map(_folded, words))
    return [phrases for spelt in both if (phrases := _phrases(list(dict.fromkeys(spelt))))]


def _phrases(words: Sequence[str]) -> list[tuple[list[str], bool]]:
    """Return (adjacent terms, whether the last term is a prefix) for each word."""
    phrases = []
    for word in words:
        parts: list[str] = []
        beginning = False
        for match in _TERM.finditer(word):
            run = match.group()
            is_cjk = bool(_IS_CJK.match(run))
            pairs = [run[i : i + 2] for i in range(max(1, len(run) - 1))] if is_cjk else [run[:_LONGEST_TERM]]
            if is_cjk and match.end() != len(word) and len(run) > 1:
                pairs.append(run[-1])  # the next term is adjacent to the run's last character
            parts += pairs
            beginning = len(run) == 1 if is_cjk else len(run) >= SHORTEST_PREFIX
        if parts:
            phrases.append((parts, beginning))
    return phrases


def _fts5(words: Sequence[str], joined: str, column: str = "") -> str:
    phrases = []
    for spellings in _spellings(words):
        spelt = [f'"{" ".join(parts)}"{"*" if beginning else ""}' for parts, beginning in spellings]
        phrases.append(spelt[0] if len(spelt) == 1 else f"({' OR '.join(spelt)})")
    return f"{column} : ({joined.join(phrases)})" if phrases and column else joined.join(phrases)


def _tsquery(words: Sequence[str], joined: str, weight: str = "") -> str:
    def phrase(parts: Sequence[str], *, beginning: bool) -> str:
        marks = [f":{weight}" if weight else "" for _ in parts]
        if beginning:
            marks[-1] = f":*{weight}"
        return "(" + " <-> ".join(f"'{part}'{mark}" for part, mark in zip(parts, marks, strict=True)) + ")"

    clauses = []
    for spellings in _spellings(words):
        spelt = [phrase(parts, beginning=beginning) for parts, beginning in spellings]
        clauses.append(spelt[0] if len(spelt) == 1 else f"({' | '.join(spelt)})")
    return joined.join(clauses)


def _tsvector(item: Text) -> str:
    position = 0
    remaining = _MOST_BYTES
    lexemes: list[str] = []
    for name, weight in (("head", "A"), ("apps", "C"), ("body", "D")):
        for term in terms(getattr(item, name), _MOST[name]):
            position += 1
            remaining -= len(term.encode())
            if remaining < 0:
                return " ".join(lexemes)
            lexemes.append(f"'{term}':{position}{weight}")
        position += 1  # no phrase crosses from one field into the next
    return " ".join(lexemes)


@dataclass(frozen=True)
class FullText:
    """The index of one kind of item, in a table that a migration created and whose name ends in `_fts`.

    On SQLite it is an FTS5 table with `head`, `apps` and `body`; on PostgreSQL it has `rowid` and a tsvector `terms`.
    `items`: the table of the items, with the same ids; `time`: its column that searches compare with `since`; `scope`:
    its column whose value `apps` then holds, one term per item, so that words are not searched in `apps`.
    """

    table: str
    items: str
    time: str
    scope: str = ""

    def put(self, session: Session, items: Sequence[Text]) -> None:
        """Index items in the caller's transaction; replace what the index has of them."""
        if not items:
            return
        self.remove(session, [item.item_id for item in items])
        if _is_sqlite(session):
            statement = f"INSERT INTO {self.table} (rowid, head, apps, body) VALUES (:id, :head, :apps, :body)"  # noqa: S608  # ours
            rows = [
                {"id": item.item_id, **{name: " ".join(terms(getattr(item, name), at)) for name, at in _MOST.items()}}
                for item in items
            ]
        else:
            statement = f"INSERT INTO {self.table} (rowid, terms) VALUES (:id, CAST(:terms AS tsvector))"  # noqa: S608  # ours
            rows = [{"id": item.item_id, "terms": _tsvector(item)} for item in items]
        session.execute(text(statement), rows)

    def remove(self, session: Session, item_ids: Sequence[int]) -> None:
        """Remove items from the index; harmless for others."""
        delete = text(f"DELETE FROM {self.table} WHERE rowid IN :ids").bindparams(bindparam("ids", expanding=True))  # noqa: S608  # ours
        for start in range(0, len(item_ids), _PORTION):
            session.execute(delete, {"ids": list(item_ids[start : start + _PORTION])})

    def purge(self, db: Database) -> None:
        """Erase removed words from the index's file: SQLite only marks them as deleted until it merges the index.

        Works in steps, so that others can write in between.
        """
        if not db.is_sqlite:
            return
        # A negative number starts a full merge; later steps continue it. Fewer than two changes mean that it is done.
        pages = -_MERGED_PAGES

        def merge(tx: Tx) -> int:
            counted = text("SELECT total_changes()")
            before: int = tx.execute(counted).scalar_one()
            command = text(f"INSERT INTO {self.table} ({self.table}, rank) VALUES ('merge', :pages)")  # noqa: S608  # ours
            tx.execute(command, {"pages": pages})
            after: int = tx.execute(counted).scalar_one()
            return after - before

        while db.run(merge) >= _FEWEST_CHANGES:
            pages = _MERGED_PAGES

    def search(
        self,
        session: Session,
        words: str,
        limit: int,
        *,
        since: datetime | None = None,
        app: str = "",
        scopes: Sequence[str] | None = None,
        only: Select[int] | None = None,
        any_word: bool = False,
    ) -> list[int]:
        """Return the ids of items with all words (or any), best first; none for a text without words. `since`: only
        items of that time or later. `app`: only items of apps whose names have these words side by side.

        `scopes`: search only items of these, in one ranking; an empty one finds none. `only`: search only items that
        this selects.
        """
        sqlite = _is_sqlite(session)
        query_words = [word[:_LONGEST_WORD] for word in words.split()[:_MOST_WORDS]]
        if sqlite:
            query = _fts5(query_words, " OR " if any_word else " AND ", "{head body}" if self.scope else "")
        else:
            query = _tsquery(query_words, " | " if any_word else " & ", "AD" if self.scope else "")
        of_app = _of_app(app, sqlite=sqlite)
        if not query or (app and not of_app) or (scopes is not None and not scopes):
            return []
        values: dict[str, Any] = {}
        if app:
            query = f"({query}) AND {of_app}" if sqlite else f"({query}) & {of_app}"
        conditions: list[ColumnElement[bool] | TextClause] = []
        if since is not None:
            conditions.append(text(self._newer()))
            values["since"] = _moment(since, sqlite=sqlite)
        if scopes is not None and len(scopes) > _MANY_SCOPES:
            of_items = column(self.scope, String)
            listed = select(column("id", BigInteger)).select_from(table(self.items))
            conditions.append(_ROWID.in_(listed.where(one_of(session, of_items, scopes))))
        elif scopes is not None and sqlite:
            named = " OR ".join(f'"{scope}"' for scope in terms(" ".join(scopes)))
            query = f"({query}) AND apps : ({named})"
        elif scopes is not None:
            # Not in `query`, which decides the ranking.
            conditions.append(text("terms @@ CAST(:within AS tsquery)"))
            values["within"] = " | ".join(f"'{scope}':C" for scope in terms(" ".join(scopes)))
        if only is not None:
            conditions.append(_ROWID.in_(only))
        values["query"] = query
        matches = f"{self.table} MATCH :query" if sqlite else "terms @@ CAST(:query AS tsquery)"
        statement = select(column("rowid", BigInteger)).select_from(table(self.table))
        ranked = statement.where(text(matches), *conditions).order_by(text(self._rank(sqlite=sqlite))).limit(limit)
        return list(session.execute(ranked, values).scalars())

    def _rank(self, *, sqlite: bool) -> str:
        if sqlite:
            return f"bm25({self.table}, 8.0, {0.0 if self.scope else 2.0}, 1.0), rowid DESC"
        return "ts_rank('{0.1, 0.2, 0.4, 1.0}', terms, CAST(:query AS tsquery), 1) DESC, rowid DESC"

    def narrowed(
        self,
        session: Session,
        limit: int,
        *,
        since: datetime | None = None,
        app: str = "",
        among: Sequence[int] | None = None,
    ) -> list[int]:
        """Return the ids of up to `limit` items of this app (empty: any) since then (None: ever), unordered; `among`:
        search only these."""
        sqlite = _is_sqlite(session)
        values: dict[str, Any] = {"limit": limit}
        conditions = []
        if app:
            values["query"] = _of_app(app, sqlite=sqlite)
            if not values["query"]:
                return []
            conditions.append(f"{self.table} MATCH :query" if sqlite else "terms @@ CAST(:query AS tsquery)")
        if since is not None:
            values["since"] = _moment(since, sqlite=sqlite)
            # The pluses, here and below: SQLite does not know which side has fewer rows, which it should walk.
            plus = "+" if sqlite and among is not None else ""
            conditions.append(self._newer() if app else f"{plus}{self.time} >= :since")
        table, key = (self.table, "rowid") if app else (self.items, "id")
        if among is not None:
            values["among"] = list(among)
            conditions.append(f"{'+' if app and sqlite else ''}{key} IN :among")
        statement = text(f"SELECT {key} FROM {table} WHERE {' AND '.join(conditions) or 'TRUE'} LIMIT :limit")  # noqa: S608  # ours
        if among is not None:
            statement = statement.bindparams(bindparam("among", expanding=True))
        return list(session.execute(statement, values).scalars().all())

    def _newer(self) -> str:
        # The plus keeps SQLite from looking up each new item in the index instead of each hit among the items.
        return f"+rowid IN (SELECT id FROM {self.items} WHERE {self.time} >= :since)"  # noqa: S608  # ours


# The plus keeps SQLite from looking up each of the others in the index instead of each hit among them.
_ROWID: ColumnElement[int] = literal_column("+rowid", BigInteger)


def _of_app(app: str, *, sqlite: bool) -> str:
    return _fts5([app], " AND ", "apps") if sqlite else _tsquery([app], " & ", "C")


def _moment(at: datetime, *, sqlite: bool) -> datetime | str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f") if sqlite else at


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"
