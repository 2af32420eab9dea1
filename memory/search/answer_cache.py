"""What searches found, kept for exactly the revision of the index that they read.

A question is everything that decides what a search finds, except the index itself: whose memory, the redacted query,
how much is wanted, from where, what is withheld from who asks, how the sides are put together, and with whose vectors.
Beside each answer stands the index's revision (`StoreReader.change_token`: generation and number of the last commit).
It is an answer for that revision and no other one, so a commit or a flip of the generation outdates it at once.

Not kept here is what is true of a moment only: how far the index is behind, whether a session is cited or may ask at
all, how long it took.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from memory.search.passages import Passage
from schemas.search import Mode

if TYPE_CHECKING:
    from memory.search.retrieval import Wanted

#: Bytes of all kept answers of a process: about 8,000 with six passages of 700 characters.
MAX_KEPT_BYTES = 48 * 1024 * 1024

#: What Python needs for an answer and for a passage of it beside their texts, in bytes, measured and rounded up.
_ANSWER_BYTES = 1_200
_PASSAGE_BYTES = 450

#: What a search is told and what does not decide what it finds.
_PASSING = frozenset({"deadline", "timeout_seconds", "now"})


@dataclass(frozen=True, slots=True)
class Question:
    """Whose memory is asked, and everything that decides what is found in it but the index."""

    agent: str
    asked: tuple[Hashable, ...]
    max_snippet_chars: int
    embedding: tuple[str, str] | None


def question_of(
    agent: str, wanted: Wanted, *, max_snippet_chars: int, embedding: tuple[str, str] | None
) -> Question | None:
    """The question that a search asks; None when its answer depends on the time of day, too.

    `embedding` is identity and model of whose vectors are searched, None with keywords only.
    """
    if wanted.hybrid.temporal_decay.enabled:
        return None
    # All that it is told: what will be added one day decides, too, until somebody says that it does not.
    asked = tuple(getattr(wanted, field.name) for field in fields(wanted) if field.name not in _PASSING)
    return Question(agent, asked, max_snippet_chars, embedding)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """What was found, best first, and how."""

    passages: tuple[Passage, ...]
    mode: Mode


class AnswerCache:
    """The answers of all agents of a process, the least recently used forgotten first. Thread-safe."""

    def __init__(self, *, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Question, tuple[object, KeptAnswer, int]] = OrderedDict()
        self._bytes = 0
        #: Searches that were answered from here, and those that looked here in vain.
        self.hits = 0
        self.misses = 0

    @property
    def kept_bytes(self) -> int:
        """About how much memory the answers take."""
        return self._bytes

    def knows(self, question: Question) -> bool:
        """Whether there is an answer, perhaps an outdated one. Nothing is counted."""
        with self._lock:
            return question in self._kept

    def get(self, question: Question, revision: object) -> KeptAnswer | None:
        """The answer for this revision of the index; one for another revision is forgotten."""
        with self._lock:
            known = self._kept.get(question)
            if known is None:
                self.misses += 1
                return None
            if known[0] != revision:
                self.misses += 1
                self._forget(question)
                return None
            self.hits += 1
            self._kept.move_to_end(question)
            return known[1]

    def put(self, question: Question, revision: object, answer: KeptAnswer) -> None:
        """Keep a complete answer that was found while the index was at this revision from beginning to end."""
        size = _size(question, answer)
        if size > self._max_bytes:
            return
        with self._lock:
            self._forget(question)
            self._kept[question] = (revision, answer, size)
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))

    def _forget(self, question: Question) -> None:
        known = self._kept.pop(question, None)
        if known is not None:
            self._bytes -= known[2]


def _size(question: Question, answer: KeptAnswer) -> int:
    texts = [part for part in question.asked if isinstance(part, str)]
    for passage in answer.passages:
        texts += (passage.snippet, passage.path, *(copy.path for copy in passage.copies))
    places = sum(1 + len(passage.copies) for passage in answer.passages)
    return _ANSWER_BYTES + _PASSAGE_BYTES * places + sum(map(sys.getsizeof, texts))
