"""Agents of a fleet for `bench_fleet_search`: a large one that the writer writes, and thousands that SQL copies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pydoc_data import topics
from typing import Any

import numpy as np
import psycopg

from memory.chunking.chunker import Chunk, text_hash
from memory.store.postgres.writer import PostgresStore
from memory.store.reader import SentenceSigns, Vector
from memory.store.writer import DocumentWrite
from schemas.agents import Scope
from schemas.documents import DocumentKey, FileStat
from tests.benchmarks.frame import CUMULATIVE_WEIGHTS, WORDS

SIZE = """
SELECT sum(pg_total_relation_size(oid)) / (SELECT count(*) FROM recalld.chunks) FROM pg_class
WHERE relnamespace = 'recalld'::regnamespace AND relkind = 'r' AND relname ~ '^(chunks|files|generations)'
"""

DIMENSIONS, SENTENCES, NOTES_AT_A_TIME = 384, 11, 50
LARGE = Scope("bench", "large")

#: Other agents, whose 20 notes have ten chunks each, from all over the large agent. A note's chunks follow each
#: other on the disk, as a commit puts them there: `0 * a` keeps them in the inner loop.
COPY = """
DO $$
DECLARE
    large text := (SELECT generation FROM recalld.generations WHERE agent = 'large');
BEGIN
    FOR note IN 1..20 LOOP
        INSERT INTO recalld.files (tenant, agent, generation, id, source, path, size, mtime_ns, inode, content_hash,
            revision, indexed_at, notes)
        SELECT tenant, 'agent-' || a, generation || a, note, source, path, size, mtime_ns, inode, content_hash,
            revision, indexed_at, notes
        FROM recalld.files, generate_series(1, %(agents)s) AS a WHERE generation = large AND id = note;
        INSERT INTO recalld.chunks (tenant, agent, generation, id, file_id, ordinal, start_line, end_line, text_hash,
            embedding, vector_state, text, words, sentence_users, sentence_signs)
        SELECT tenant, 'agent-' || a, generation || a, at + 1, note, at %% 10, at %% 10 * 20 + 1, at %% 10 * 20 + 20,
            text_hash, embedding, vector_state, text, words, sentence_users, sentence_signs
        FROM generate_series(1, %(agents)s) AS a,
            generate_series(note * 10 - 10 + 0 * a, note * 10 - 1) AS at, LATERAL (
            SELECT * FROM recalld.chunks
            WHERE generation = large AND id = (a * 7919 + at * 251) %% %(large)s + 1 OFFSET 0
        ) AS copied;
    END LOOP;
END $$;
INSERT INTO recalld.agents (tenant, agent)
SELECT tenant, 'agent-' || a FROM recalld.agents, generate_series(1, %(agents)s) AS a;
INSERT INTO recalld.generations (tenant, agent, generation, state, fingerprint, identity, dimensions, last_commit_at,
    transactions, last_chunk_id, last_file_id)
SELECT tenant, 'agent-' || a, generation || a, state, fingerprint, identity, dimensions, last_commit_at, 1, 200, 20
FROM recalld.generations, generate_series(1, %(agents)s) AS a;
"""


def unit(numbers: np.random.Generator) -> Vector:
    vector: Vector = numbers.standard_normal(DIMENSIONS).astype(np.float32)
    return vector / np.linalg.norm(vector)


def passages(draw: random.Random) -> Iterator[str]:
    """Yield passages: sentences of Python's help texts, each with a name."""
    texts = [text.split() for text in " ".join(topics.topics.values()).replace("\n\n", ". ").split(". ")]
    sentences = [" ".join(words) for words in texts if 8 <= len(words) <= 24]
    while True:
        names = draw.choices(WORDS, cum_weights=CUMULATIVE_WEIGHTS, k=SENTENCES)
        drawn = zip(draw.choices(sentences, k=SENTENCES), names, strict=True)
        yield "\n".join(f"- {text} ({name})." for text, name in drawn)


def write_large(store: PostgresStore, chunks: int) -> None:
    """Write the large agent, ten chunks a note."""
    texts, numbers = passages(random.Random(7)), np.random.default_rng(7)
    for first in range(0, chunks // 10, NOTES_AT_A_TIME):
        changes, signs = [], {}
        for note in range(first, first + NOTES_AT_A_TIME):
            drawn = [next(texts) for _ in range(10)]
            added = tuple(Chunk(at, at * 20 + 1, at * 20 + 20, text, text_hash(text)) for at, text in enumerate(drawn))
            for chunk in added:
                sentences = numbers.standard_normal((SENTENCES, DIMENSIONS)).astype(np.float32)
                signs[chunk.text_hash] = SentenceSigns.of(sentences, [True] * SENTENCES)
            key, vectors = DocumentKey("memory", f"memory/{note:05d}.md"), {at.text_hash: unit(numbers) for at in added}
            changes.append(DocumentWrite(key, 0, FileStat(1, 1, note), str(note), added, vectors))
        store.write(changes)
        store.add_sentences(signs)


def copy_agents(superuser: psycopg.Connection[Any], *, agents: int, large: int) -> None:
    """Copy chunks of the large agent, which has so many, to so many other agents."""
    superuser.execute("ANALYZE")
    superuser.execute(COPY, {"agents": agents, "large": large})
    superuser.execute("VACUUM ANALYZE")


def bytes_a_chunk(superuser: psycopg.Connection[Any]) -> float:
    """Return the bytes that a chunk takes on the disk, with its share of documents, generations and all indexes."""
    [(size,)] = superuser.execute(SIZE)
    return float(size)
