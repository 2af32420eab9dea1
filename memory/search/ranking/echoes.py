"""Echoes: turns in which a user asked the query before. They match it word for word and answer nothing. Pure.

A user's turn is an echo if it is the query again, or a question much like it. A question without an answer ("I don't
know") is none to any query. The answer to an echo stays evidence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memory.chunking.folding import fold
from memory.search.ranking.query import sought, stems
from memory.store.reader import ChunkRow
from memory.transcripts.packing import QUOTED_LABEL, PackedMessage, messages_of

#: Share of common terms (Jaccard) from which on a question is much like the query.
_ALIKE = 0.6

#: Most characters of an echo beyond twice those of the query, and of an answer that says nothing.
_MORE_CHARACTERS, _NO_ANSWER_CHARACTERS = 80, 120

_QUESTION = re.compile(
    r"[?？]\W*$|^\W*(?:who|what|which|when|where|why|how|is|are|do|does|did|can)\b|什么|哪|谁|多少|几|怎么|如何|为何",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"\W{0,4}(?:(?:sorry|unfortunately)\W{1,4})?(?:i['’]?m not sure|i am not sure|i (?:do not|don['’]t) (?:know|have)"
    r"|i (?:could not|couldn['’]t|cannot|can['’]t|did not|didn['’]t) find|no (?:record|information|idea)"
    r"|(?:抱歉|对不起)?\W{0,4}我?(?:不知道|不清楚|没有?找到|没有(?:相关|记录)|找不到))",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Remainders:
    """Chunks without their echoes, by id, and the shares of their keyword scores and cosines that remain."""

    rows: dict[int, ChunkRow]
    words: dict[int, float]
    near: dict[int, float]


def without_echoes(query: str, rows: Mapping[int, ChunkRow]) -> Remainders:
    """Return the remainders of the conversations that hold an echo.

    A keyword score keeps the share of the query's terms. A cosine keeps the square of the share of the text: without a
    question of a third of its text, a chunk's cosine of 0.61 is 0.33.
    """
    remainders, terms = Remainders({}, {}, {}), sought(query)
    for id_, row in rows.items():
        messages = messages_of(row.text if row.key.is_transcript else QUOTED_LABEL.sub(r"\1: ", row.text))
        rest = _unechoed(query, messages)
        if len(rest) < len(messages):
            remainders.rows[id_] = replace(row, text="\n".join(rest))
            counts = [sum(term in fold(text) for term in terms) for text in ("\n".join(rest), row.text)]
            remainders.words[id_] = counts[0] / max(1, counts[1])
            remainders.near[id_] = (sum(map(len, rest)) / sum(len(message.text) for message in messages)) ** 2
    return remainders


def weakened(scores: Mapping[int, float], shares: Mapping[int, float]) -> dict[int, float]:
    """Return scores multiplied by their shares, without those of no share."""
    return {id_: score * shares.get(id_, 1.0) for id_, score in scores.items() if shares.get(id_, 1.0)}


def _unechoed(query: str, messages: Sequence[PackedMessage]) -> list[str]:
    rest, before = [], None
    for place, message in enumerate(messages):
        after = messages[place + 1] if message.is_users and place + 1 < len(messages) else None
        question, answer = (message, after) if message.is_users else (before, message)
        is_unanswered = question is not None and answer is not None and _is_unanswered(question, answer)
        if not is_unanswered and not (message.is_users and is_echo(query, message.text)):
            rest.append(message.text)
        before = message if message.is_users else before
    return rest


def is_echo(query: str, turn: str) -> bool:
    """Return True if a user's turn is the query again, or a question much like the query, which is a question, too."""
    if len(turn) > 2 * len(query) + _MORE_CHARACTERS:
        return False
    terms, folded = stems(query), fold(turn)
    # Segmenting the turn takes long, and few turns hold the terms.
    if sum(term in folded for term in terms) < _ALIKE * len(terms):
        return False
    if folded.strip() == fold(query).strip():
        return True
    turn_terms = stems(turn)
    is_alike = len(terms & turn_terms) >= _ALIKE * len(terms | turn_terms) > 0
    return is_alike and all(_QUESTION.search(text) for text in (query, turn))


def _is_unanswered(question: PackedMessage, answer: PackedMessage) -> bool:
    is_short = not answer.is_users and len(answer.text) <= _NO_ANSWER_CHARACTERS
    return is_short and bool(_NO_ANSWER.match(answer.text)) and bool(_QUESTION.search(question.text))
