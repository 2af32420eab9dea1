"""Import of documents from one store into another, where a store is any."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from memory.documents.agent_files import AgentFiles
from memory.store.reader import SentenceSigns, VectorState
from recalld.runs.imports import import_documents
from schemas.documents import DocumentKey
from tests.indexing import World
from tests.storing import TemporaryStore, chunk, document, key, vector


def test_states_of_vectors_sentences_and_times_come_along(tmp_path: Path) -> None:
    source, target, talk = TemporaryStore(), TemporaryStore(), DocumentKey("sessions", "sessions/t.jsonl")
    with World(tmp_path) as world:
        ready = document(talk, "the heron stood", "and flew", vectors=[vector(1), vector(2)])
        source.write([ready])
        pending = document(key("sessions/u.jsonl", "sessions"), "a badger waits")
        source.write([pending])
        source.write_vectors({3: (pending.added[0].text_hash, chunk("x", refused="too long").vector)})
        first = ready.added[0].text_hash
        source.add_sentences({first: SentenceSigns.of(np.ones((1, 16), dtype=np.float32), [True])})
        agent = world.agent()
        assert import_documents(source, target, agent, AgentFiles(agent)) == (2, [])
        for store in (source, target):
            states = [each.vector_state for each in store.chunks_of(talk)]
            assert states == [VectorState.READY] * 2
            [refused] = store.refused_chunks(pending.key)
            assert refused.refusal == "too long"
            assert np.array_equal(store.vectors_by_hash([first])[first], vector(1))
            assert list(store.sentence_signs([1])) == [1]
            assert store.check() == []
