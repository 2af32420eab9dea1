"""Reading of rows: methods and statements that all stores share."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from memory.store.reader import (
    MOST_BEGUN,
    MOST_WITH_SENTENCES,
    IndexedFile,
    SentenceSigns,
    StoredChunk,
    StoreReader,
    TranscriptPosition,
)
from memory.store.rows import (
    CHANGED_AT,
    DEAD_LETTER_COLUMNS,
    FILE_COLUMNS,
    STORED_CHUNK_COLUMNS,
    FileRow,
    dead_letter,
    in_order,
    indexed_file,
    name_of,
    stored_signs,
)
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.status import DeadLetter

#: Rows in one page.
PAGE = 2_000

#: A limit that no index reaches.
_NO_LIMIT = 2**62


def names_of(keys: Iterable[DocumentKey]) -> str:
    """Return the binding `keys` of a statement. Raises like `name_of`."""
    return json.dumps([name_of(key) for key in keys])


def statements(
    *, prefix: str, of: str, both: str, ids: str, keys: str, position: str, lacks_sentences: str
) -> dict[str, str]:
    """Return the statements by name, with bindings such as `:source`.

    `prefix` precedes the names of tables, and `of` is the condition on the rows of the generation. `both` joins chunks
    and files. `ids` and `keys` are conditions on the ids in `:ids` and the names in `:keys` (`names_of`). `position`
    has the columns of a transcript's position and the table of files, `lacks_sentences` is a condition on chunks.
    """
    files, chunks = f"FROM {prefix}files AS f WHERE {of}", f"FROM {prefix}chunks AS c WHERE {of}"
    letters = f"{DEAD_LETTER_COLUMNS} FROM {prefix}dead_letters WHERE {of}"
    chunks_of = f"SELECT {STORED_CHUNK_COLUMNS} {chunks} AND file_id"
    file_id = f"(SELECT id {files} AND source = :source AND path = :path)"
    newest = f"(SELECT id {chunks} ORDER BY id DESC LIMIT 1 OFFSET {MOST_WITH_SENTENCES})"
    lacking = f"{chunks} AND id > coalesce({newest}, 0) AND vector_state = 'ready' AND {lacks_sentences}"
    states = ("pending", "refused", "unread")
    counts = (f"(SELECT count(*) {chunks} AND vector_state = '{state}')" for state in states)
    return {
        "file": f"SELECT id, {position} WHERE {of} AND source = :source AND path = :path",
        "files_named": f"SELECT id, {position} WHERE {of} AND {keys}",
        "files": f"SELECT id, {FILE_COLUMNS} {files} AND id > :last ORDER BY id LIMIT {PAGE}",
        "changes": f"""
            SELECT source, path, changed FROM (SELECT source, path, {CHANGED_AT} AS changed {files}) AS f
            WHERE (source = :source OR :source IS NULL) AND substr(path, 1, length(:under)) = :under
                AND changed >= :since AND changed < :until ORDER BY changed DESC, path LIMIT :limit""",
        "beginnings": f"""
            SELECT {FILE_COLUMNS}, (SELECT substr(text, 1, 4000) {chunks} AND file_id = f.id AND ordinal = 0)
            {files} AND {keys}""",
        # By the index on (file_id, ordinal): no chunk is read.
        "chunks_by_path": f"SELECT path, (SELECT count(*) {chunks} AND file_id = f.id) {files} AND source = :source",
        # Two ranges of that index: a slice of a transcript looks only at the chunks that it concerns.
        "chunks_of": f"{chunks_of} = {file_id} AND ordinal >= :first UNION ALL {chunks_of} = {file_id} AND ordinal < 0",
        "begun_by": f"""
            SELECT source, path {both} AND text_hash = :hash AND ordinal = 0 AND source = :source
            ORDER BY c.id LIMIT {MOST_BEGUN}""",
        "pending": f"SELECT id, text_hash {chunks} AND vector_state = 'pending' ORDER BY id LIMIT :limit",
        "pending_among": f"SELECT c.id, text_hash, source, path {both} AND vector_state = 'pending' AND c.id {ids}",
        "refused_of_file": f"{chunks_of} = :file AND vector_state = 'refused'",
        "lacking": f"SELECT id, text_hash {lacking} ORDER BY id DESC LIMIT :limit",
        "count_lacking": f"SELECT count(*) {lacking}",
        "letters": f"SELECT {letters} AND last_at > 0 ORDER BY last_at DESC, source, path",
        "letters_named": f"SELECT {letters} AND {keys}",
        # Subtraction gives the ready ones: counting them would read every row.
        "counts": f"SELECT (SELECT count(*) {files}), (SELECT count(*) {chunks}), {', '.join(counts)}",
        "count_pending": f"SELECT count(*) {chunks} AND vector_state = 'pending'",
        "count_unread": f"""
            SELECT refusal, count(DISTINCT file_id) {chunks} AND vector_state = 'unread'
            GROUP BY refusal ORDER BY 2 DESC, 1""",
        # -1 - ordinal has as many bytes as the ordinal (except for the first two): SQLite overwrites rows in place.
        "make_stale": f"""
            UPDATE {prefix}chunks SET ordinal = -1 - ordinal WHERE {of} AND file_id = :file AND ordinal >= :first""",
    }


class RowReader(StoreReader):
    """Reader by `statements`, and by some of the store: "named", "texts_holding" and "sentences_after"."""

    @abstractmethod
    def _fetch(self, statement: str, **bindings: object) -> list[tuple[Any, ...]]:
        """Return all rows of the statement of this name."""

    def _once(self, statement: str, **names: str) -> list[tuple[Any, ...]]:
        """Return all rows of a statement, as `_fetch` does; a store may ask for them once in a transaction."""
        return self._fetch(statement, **names)

    def _file(self, key: DocumentKey) -> FileRow | None:
        source, path = name_of(key)
        rows = self._once("file", source=source, path=path)
        return FileRow.of(rows[0]) if rows else None

    def file(self, key: DocumentKey) -> IndexedFile | None:
        row = self._file(key)
        return row.file if row is not None else None

    def transcript(self, key: DocumentKey) -> TranscriptPosition | None:
        row = self._file(key)
        return row.position if row is not None else None

    def revision(self, key: DocumentKey) -> int:
        row = self._file(key)
        return row.file.revision if row is not None else -int(self.meta("deletions") or 0)

    def changes(
        self,
        source: str | None = None,
        *,
        under: str = "",
        since: float = 0.0,
        until: float = math.inf,
        limit: int = -1,
    ) -> list[tuple[DocumentKey, float]]:
        most = limit if limit >= 0 else _NO_LIMIT
        span = {"since": since, "until": min(until, 1e12)}
        rows = self._fetch("changes", source=source, under=under, limit=most, **span)
        return [(DocumentKey(*row[:2]), float(row[2])) for row in rows]

    def beginnings(self, keys: Collection[DocumentKey]) -> list[tuple[IndexedFile, str]]:
        rows = self._fetch("beginnings", keys=names_of(keys))
        return [(indexed_file(row[:-1]), row[-1] or "") for row in rows]

    def files(self) -> Iterator[IndexedFile]:
        # Each page is fetched at once: a half-read statement would hold its snapshot and the write-ahead log.
        last = 0
        while rows := self._fetch("files", last=last):
            yield from (indexed_file(row[1:]) for row in rows)
            last = rows[-1][0]

    def chunks_by_path(self, source: str) -> dict[str, int]:
        return dict(self._fetch("chunks_by_path", source=source))

    def chunks_of(self, key: DocumentKey, *, first: int = 0) -> list[StoredChunk]:
        source, path = name_of(key)
        return in_order(self._fetch("chunks_of", source=source, path=path, first=first))

    def named(self, folder: str, name: str) -> list[DocumentKey]:
        return [DocumentKey(*row) for row in self._fetch("named", folder=folder, name=name)]

    def begun_by(self, text_hash: str) -> list[DocumentKey]:
        return [DocumentKey(*row) for row in self._fetch("begun_by", hash=text_hash, source=SESSIONS_SOURCE)]

    def texts_holding(
        self, words: Sequence[str], keys: Collection[DocumentKey]
    ) -> list[tuple[DocumentKey, int, str | None]]:
        rows = self._fetch("texts_holding", words=words, keys=names_of(keys))
        return [(DocumentKey(*row[:2]), int(row[2]) % 2**64, row[3]) for row in rows]

    def pending_hashes(self, limit: int | None = None, *, among: Collection[str] | None = None) -> dict[int, str]:
        if among is None:
            return dict(self._fetch("pending", limit=_NO_LIMIT if limit is None else limit))
        pending = self._fetch("pending", limit=_NO_LIMIT) if among else []
        return dict(islice((row for row in pending if row[1] in among), limit))

    def lacking_sentences(self, limit: int) -> dict[int, str]:
        return dict(self._fetch("lacking", limit=limit))

    def sentence_counts(self) -> tuple[int, int]:
        newest = min(self.counts().vectors_ready, MOST_WITH_SENTENCES)
        return max(0, newest - self._fetch("count_lacking")[0][0]), newest

    def all_sentences(self) -> Iterator[dict[str, SentenceSigns]]:
        last = 0
        while rows := self._fetch("sentences_after", last=last):
            yield {text_hash: stored_signs(users, signs) for _, text_hash, users, signs in rows}
            last = rows[-1][0]

    def dead_letters(self) -> list[DeadLetter]:
        return [dead_letter(row) for row in self._fetch("letters")]

    def vectors_pending(self) -> int:
        return int(self._fetch("count_pending")[0][0])

    def unread_scripts(self) -> dict[str, int]:
        return dict(self._fetch("count_unread"))
