"""Order of changes: the newest statement of a fact before the older ones.

A question for a state, a value or a decision ("which port do we use") wants the latest statement of a fact. Statements
of one fact differ in words and in day. A passage states it if its best sentence is about the question, or says much the
same as a sentence that is: the score `cosine + 0.5 * share + 0.1 * change` of the sentence reaches 0.65 of the best,
or 0.45 and is like a stating sentence, by `cosine + 0.3 * common words`. `share` is that of the query's weight, and
`change` is 1 for a sentence with a word of change. The dated passages among these share their places anew, the newest
first. A line of a curated file (`MEMORY.md`) is the newest, as its owner keeps it current.

Many such passages are a subject and not a fact, and keep their order; so do transcripts alone, which may be chats of
people, and questions for the past or for reasons. Without vectors of sentences only curated lines move, by their words.

The constants were set by hand on facts of our own (`tests/benchmarks/RESULTS.md`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memory.chunking.curated import CURATED_FILES
from memory.chunking.folding import fold
from memory.search.ranking.coverage import FORM, weighted_terms
from memory.search.ranking.order import Scored, age_in_days, tokens
from memory.store.reader import SentenceSigns, StoreReader, TermCounts
from memory.transcripts.packing import packed_sentences
from schemas.lazy_module import LazyModule

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = LazyModule("numpy")

#: First hits among which statements are looked for.
STATING = 20

#: Weights of the query's share, of a word of change, and of common words.
_SHARE, _CHANGED, _COMMON = 0.5, 0.1, 0.3

#: Shares of the best score of a sentence about the question, and of a sentence like it; the likeness.
_ABOUT, _LINKED, _ALIKE = 0.65, 0.45, 0.4

#: The first share for a curated line where the first hit is a note, and where it is not and words alone count.
_CURATED, _CURATED_BY_WORDS = 0.85, 0.5

#: Most passages outside of curated files that state one fact.
_MOST = 5

#: Age in days of a curated line, newer than all.
_OF_CURATED = -1.0

#: Rounds in which a sentence may be like one of the round before.
_ROUNDS = 2

_REASON = re.compile(r"\b(?:why|caus|reason)|为什么|为何|原因", re.IGNORECASE)
_DECISION = re.compile(r"\b(?:decid|decision|agreed?\b|polic)|决定|商定|说好", re.IGNORECASE)
_PAST = re.compile(
    r"\b(?:did|was|were|had|has|have been|ago|before|first|originally|used to|ever|history|previous\w*|earlier"
    r"|initially)\b|曾经|以前|之前|当时|原来|最初|第一次|上次|[过了][吗？?]",
    re.IGNORECASE,
)
_CHANGE = re.compile(
    r"\b(?:chang|mov|switch|replac|rais|reduc|upgrad|migrat|revers|renam|lower|increas|return|stopp|enabl|disabl)ed\b"
    r"|\b(?:go|drop)(?:es|s)? (?:up|down|back|away|through|to)\b|\b(?:no longer|instead|as of|back to|now)\b"
    r"|\bfrom (?:\w+ )?\w+ on\b|\b(?:hand|took|tak)\w* (?:it )?over\b"
    r"|改[成到为由用从放回]|换[成到了]|[调降涨挪转切推回搬][到去回]|升级|恢复成|不再|不用了|现在|以后|提前到|收紧|放宽|暂停|推翻|接手|交接",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Passage:
    """Sentences of a hit with their scores and signs, and the place of the sentence that states the fact."""

    sentences: Sequence[str]
    scores: npt.NDArray[np.float32]
    signs: npt.NDArray[np.uint8] | None
    stating: int | None = None


def changes_first(
    reader: StoreReader,
    query: str,
    counts: TermCounts,
    hits: Sequence[Scored],
    cosines: Mapping[int, npt.NDArray[np.float32]],
    signs: Mapping[int, SentenceSigns],
    texts: Mapping[int, str],
    *,
    now: float,
) -> list[Scored]:
    """Put newer statements of the fact that a question asks for before older ones.

    `cosines` and `signs` are of the sentences of chunks, and `texts` those of chunks without their echoes. `now` is in
    Unix seconds.
    """
    asks_for_now = not _REASON.search(query) and (_DECISION.search(query) or not _PAST.search(query))
    if not asks_for_now or all(row.key.is_transcript for _, row in hits):
        return list(hits)
    times, ages = reader.times_of([row.id for _, row in hits]), {}
    for number, (_, row) in enumerate(hits):
        age = _OF_CURATED if row.key.path in CURATED_FILES else age_in_days(row.key.path, times.get(row.id), now=now)
        if age is not None:
            ages[number] = age
    if len(ages) < 2:
        return list(hits)
    terms = weighted_terms(query, counts)
    total_weight = sum(weight for *_, weight in terms) or 1.0
    passages = [_passage(hit, terms, total_weight, cosines, signs, texts.get(hit[1].id)) for hit in hits]
    best = max((float(passage.scores.max()) for passage in passages if passage.sentences), default=0.0)
    if best <= 0:
        return list(hits)
    has_meaning = any(passage.signs is not None for passage in passages)
    of_curated = (_ABOUT if has_meaning else _CURATED_BY_WORDS) if hits[0][1].key.is_transcript else _CURATED
    for number, passage in enumerate(passages):
        least = (of_curated if ages.get(number) == _OF_CURATED else _ABOUT) * best
        if passage.sentences and passage.scores.max() >= least:
            passage.stating = int(passage.scores.argmax())

    def is_a_fact() -> bool:
        stating = [number for number, passage in enumerate(passages) if passage.stating is not None]
        return sum(ages.get(number) != _OF_CURATED for number in stating) <= _MOST

    for _ in range(_ROUNDS):
        if is_a_fact():
            _link(passages, least=_LINKED * best)
    in_time = has_meaning and is_a_fact()
    places = {
        number: age if in_time else min(0.0, age)
        for number, age in ages.items()
        if passages[number].stating is not None
    }
    ordered = list(hits)
    for number, newer in zip(places, sorted(places, key=lambda number: places[number]), strict=True):
        ordered[number] = hits[newer]
    return ordered


def _passage(
    hit: Scored,
    terms: Sequence[tuple[str, str, float]],
    total_weight: float,
    cosines: Mapping[int, npt.NDArray[np.float32]],
    signs: Mapping[int, SentenceSigns],
    text: str | None,
) -> _Passage:
    fused, row = hit
    sentences = [sentence for sentence, _ in packed_sentences(row.text, is_transcript=row.key.is_transcript)]
    near, of_chunk = cosines.get(row.id), signs.get(row.id)
    if near is None or of_chunk is None or len(near) != len(sentences):
        cosine = (fused.vector or 0.0) if cosines else 0.0
        near, of_chunk = np.full(len(sentences), cosine, dtype=np.float32), None
    scores = np.array(near)
    for place, sentence in enumerate(sentences):
        folded = fold(sentence)
        if text is not None and sentence not in text:
            scores[place] = 0.0
        else:
            weight_held = sum(
                w if stem in folded else FORM * w if form and form in folded else 0.0 for stem, form, w in terms
            )
            scores[place] += _SHARE * weight_held / total_weight
    # A word of change decides between the best sentences only, and looking for one is slow.
    for place in np.flatnonzero(scores > scores.max(initial=0.0) - _CHANGED).tolist():
        scores[place] += _CHANGED * bool(_CHANGE.search(sentences[place]))
    return _Passage(sentences, scores, of_chunk.signs if of_chunk is not None else None)


def _link(passages: Sequence[_Passage], *, least: float) -> None:
    """Let passages state the fact, too, whose sentence of a score of at least `least` is like a stating one."""
    stating = [passage for passage in passages if passage.stating is not None and passage.signs is not None]
    for passage in passages:
        if passage.stating is not None or passage.signs is None:
            continue
        places = np.flatnonzero(passage.scores >= least).tolist()
        alike = [(_likeness(passage, place, statement), place) for place in places for statement in stating]
        likeness, place = max(alike, default=(0.0, 0))
        if likeness >= _ALIKE:
            passage.stating = place


def _likeness(passage: _Passage, place: int, statement: _Passage) -> float:
    """Return how much a sentence says the same as the stating one of another passage."""
    if passage.signs is None or statement.signs is None or statement.stating is None:
        return 0.0
    different = int(np.unpackbits(passage.signs[place] ^ statement.signs[statement.stating]).sum())
    # The share of equal signs tells the angle (Charikar, "Similarity estimation techniques", 2002).
    cosine = float(np.cos(np.pi * different / (8 * passage.signs.shape[1])))
    words, other_words = tokens(passage.sentences[place]), tokens(statement.sentences[statement.stating])
    return cosine + _COMMON * len(words & other_words) / max(1, min(len(words), len(other_words)))
