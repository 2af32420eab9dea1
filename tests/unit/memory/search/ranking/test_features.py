"""Scores of candidates before fusion."""

from __future__ import annotations

import numpy as np
import pytest

from memory.chunking.folding import fold
from memory.search.ranking.coverage import word_matcher
from memory.search.ranking.features import (
    Closest,
    closest_sentences,
    near_scores,
    sentence_cosines,
    voice_weight,
    word_scores,
)
from memory.store.reader import ChunkRow, SentenceSigns, TermCounts, Vector
from schemas.documents import DocumentKey


def chunk(text: str, *, source: str = "sessions") -> ChunkRow:
    return ChunkRow(1, DocumentKey(source, "a"), 0, 1, 1, text)


@pytest.mark.parametrize(
    ("chunks", "weight"),
    [
        ([chunk("User: abcd\nAssistant: " + "x" * 40)], 1.0),
        ([chunk("User: abcde\nAssistant: abcde")], 0.0),
        ([chunk("Assistant: " + "x" * 40, source="memory")], 0.0),
        ([chunk("User: " + "x" * 19 + "\nAssistant: " + "x" * 45)], 0.5),
        ([], 0.0),
    ],
    ids=["an agent's", "people's", "notes", "between", "none"],
)
def test_users_words_weigh_more_where_assistants_write_most(chunks: list[ChunkRow], weight: float) -> None:
    assert voice_weight(chunks) == pytest.approx(weight)


def unit(*values: float) -> Vector:
    vector = np.array(values, dtype=np.float32)
    return vector / np.float32(np.linalg.norm(vector))


def signs_of(*sentences: Vector, users: list[bool]) -> SentenceSigns:
    return SentenceSigns(np.packbits(np.stack(sentences) > 0, axis=1), np.array(users, dtype=bool))


def test_the_closest_sentence_of_a_chunk_and_of_its_users_are_known_by_signs_alone() -> None:
    generator = np.random.default_rng(7)
    query, other, far = (unit(*generator.normal(size=512)) for _ in range(3))
    near = unit(*(query + 0.8 * other))
    signs = {
        1: signs_of(far, near, users=[True, False]),
        2: signs_of(near, far, users=[True, True]),
        3: signs_of(far, users=[False]),
        4: SentenceSigns(np.empty((0, 64), dtype=np.uint8), np.empty(0, dtype=bool)),
    }
    closest = closest_sentences(sentence_cosines(query, signs), signs)
    assert closest[1].of_all == closest[2].of_all == pytest.approx(float(near @ query), abs=0.08)
    assert closest[2].of_users == closest[2].of_all > 0.6 > 0.2 > (closest[1].of_users or 0.0)
    assert closest[3].of_users is None
    assert 4 not in closest


def test_a_chunk_without_sentences_is_judged_by_its_cosine_and_the_others() -> None:
    closest = {1: Closest(0.5, None), 2: Closest(0.5, 0.4)}
    near = near_scores({1: 0.2, 2: 0.2, 3: 0.2}, closest, voice=1.0)
    # A chunk without a word of a user has the least of the others.
    assert near[1] == near[2] == pytest.approx(0.2 + 0.7 * (0.5 + 0.4))
    assert near[3] == pytest.approx(0.2 + 0.7 * (0.5 + 0.4))
    assert near_scores({3: 0.2}, {}, voice=0.0) == {3: pytest.approx(0.2 + 0.7 * 0.2)}


def test_users_words_and_the_best_sentence_add_to_the_words_of_a_chunk() -> None:
    words = word_scores({1: 2.0, 2: 2.0, 3: 2.0}, {1: 1.0}, {1: 1.0, 2: 1.0}, voice=0.5)
    assert words == {1: pytest.approx(2.8), 2: pytest.approx(2.3), 3: 2.0}


def test_words_in_one_sentence_are_worth_more_than_the_same_words_in_several() -> None:
    filler = "This sentence is about something else, as most of them are. "
    matcher = word_matcher("blue gateway", TermCounts(100, {"blue": 3, "gateway": 3}))
    together, apart = (
        matcher(text, fold(text))
        for text in (
            filler + "The gateway is painted blue these days, as you know.",
            "The gateway is new. " * 3 + filler + "The sky was blue on that day, and so was the sea.",
        )
    )
    assert together.coverage == apart.coverage == 1.0
    assert together.line > 1.5 * apart.line > 0
    assert word_matcher("数据库迁移", TermCounts(100, {"数据": 3}))("数据库", "数据库").line == 0.0


def test_a_note_stands_to_its_users_words_as_the_transcripts_beside_it_do() -> None:
    # Half of the transcripts' BM25 is the users', and so is half of the note's.
    assert word_scores({1: 2.0, 2: 2.0, 3: 2.0}, {1: 2.0}, {}, voice=1.0, notes={3}) == {1: 4.0, 2: 2.0, 3: 3.0}
    near = near_scores({1: 0.2, 2: 0.2}, {1: Closest(0.5, 0.3), 2: Closest(0.5, 0.5)}, voice=1.0, notes={2})
    assert near[1] == pytest.approx(near[2])
