"""Passages of an answer: exact lines, and nothing twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from memory.chunking.chunker import chunk_text
from memory.redaction import redact
from memory.search.answers import passages_of
from memory.search.get import lines_of
from memory.search.ranking.fusion import Fused
from memory.search.ranking.overlap import repeats
from memory.search.ranking.query import sought
from memory.search.retrieval import Retrieval
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey
from schemas.search import SearchResult
from tests.examples import examples

NOTE = DocumentKey("memory", "memory/a.md")

#: A word that stands once in a document: shown twice, it is the same place twice.
WORD = re.compile(r"w\d+q")

SECRET = "password = hunter2hunter2hunter2"


def rows_of(text: str, *, tokens: int = 400, overlap: int = 80) -> list[ChunkRow]:
    """The chunks of a note as the index keeps them."""
    chunks = [chunk for chunk in chunk_text(text, tokens=tokens, overlap=overlap) if chunk.text.strip()]
    return [
        ChunkRow(id=place, key=NOTE, ordinal=place, start_line=one.start_line, end_line=one.end_line, text=one.text)
        for place, one in enumerate(chunks)
    ]


def fused(row: ChunkRow) -> Fused:
    return Fused(id=row.id, rank=1.0, score=1.0, vector=None, text=1.0)


def shown(rows: Sequence[ChunkRow], query: str, *, max_chars: int = 700) -> list[SearchResult]:
    """An answer with these hits, as a search leaves them: without those that mostly repeat a better one."""
    kept: list[ChunkRow] = []
    for row in rows:
        if not repeats(row, kept):
            kept.append(row)
    hits = tuple((fused(row), row) for row in kept)
    retrieval = Retrieval(hits=hits, terms=sought(query), mode="keyword", lacks=())
    return [passage[0] for passage in passages_of(retrieval, max_snippet_chars=max_chars)]


def words_of(passages: Sequence[SearchResult]) -> Counter[str]:
    return Counter(word for passage in passages for word in WORD.findall(passage.snippet))


SENTENCES = st.lists(
    st.sampled_from(
        [
            "{} the gateway restarted. ",
            "{} moved\n",
            "{} 数据库周五迁移。",
            "{} 备份在三点执行！\n",
            "\n\n{} ",
            "\n# {}\n",
            "{}\r\n",
            "{} 👩\u200d👩\u200d👧 e\u0301 ",
            "\n```\n{}\n```\n",
            f"{SECRET}{{}}\n",
        ]
    ),
    min_size=1,
    max_size=160,
)
QUERIES = st.sampled_from(["gateway restarted", "数据库迁移", "备份", "nothing at all", "moved to w3q", "w10q w40q"])


@given(
    pieces=SENTENCES,
    query=QUERIES,
    limit=st.sampled_from([40, 120, 700]),
    sizes=st.sampled_from([(32, 16), (48, 0), (100, 20), (100, 50), (400, 80)]),
    choice=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(400), deadline=None)
def test_a_notes_snippets_stand_in_their_lines_and_show_no_place_twice(pieces, query, limit, sizes, choice):
    text = redact("".join(piece.format(f"w{place}q") for place, piece in enumerate(pieces)))
    rows = rows_of(text, tokens=sizes[0], overlap=sizes[1])
    hits = choice.sample(rows, choice.randint(0, min(len(rows), 8)))

    answer = shown(hits, query, max_chars=limit)

    lines = lines_of(text)
    for passage in answer:
        assert passage.start_line <= passage.snippet_start_line <= passage.snippet_end_line <= passage.end_line
        held = lines[passage.snippet_start_line - 1 : passage.snippet_end_line]
        snippet = passage.snippet.replace("\r\n", "\n")
        assert snippet in "\n".join(held)
        assert snippet.count("\n") == len(held) - 1, "no line more than it takes"
        assert snippet
    assert max(words_of(answer).values(), default=0) <= 1
