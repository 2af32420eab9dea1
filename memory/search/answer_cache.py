"""Cache of answers, each for exactly the revision of the index that the search read.

The key is everything that decides a search's results, except the index itself: the agent, the redacted query, number
and sources of results, the documents withheld from the session, the settings of ranking, and the embedding provider.
An answer holds for one revision (`StoreReader.change_token`: generation and number of the last commit), so a commit or
a new generation outdates it at once.

Facts of a moment are not kept: pending documents, citations and scope of a session, the time that a search took.
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

#: Answers of a process: about 3 MB with six passages of 700 characters.
MOST_KEPT = 512

#: Memory of an answer and of a passage beside its text, in bytes, measured and rounded up.
_ANSWER_BYTES, _PASSAGE_BYTES = 1_200, 450

#: Fields of `Wanted` that do not decide the results.
_PASSING = frozenset({"now"})


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that decides the results of a search, except the index."""

    agent: str
    asked: tuple[Hashable, ...]
    max_snippet_chars: int
    embedding: tuple[str, str] | None


def question_of(
    agent: str, wanted: Wanted, *, max_snippet_chars: int, embedding: tuple[str, str] | None
) -> Question | None:
    """Return the key of a search's answer; None if the answer depends on the time, too.

    `embedding` is identity and model of the provider, None with keywords only.
    """
    if wanted.hybrid.temporal_decay.enabled:
        return None
    # A new field of `Wanted` decides, too, until it is listed in `_PASSING`.
    asked = tuple(getattr(wanted, field.name) for field in fields(wanted) if field.name not in _PASSING)
    return Question(agent, asked, max_snippet_chars, embedding)


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """Passages, best first, the mode of the search that found them, and the chunks without a vector then."""

    passages: tuple[Passage, ...]
    mode: Mode
    vectors_pending: int = 0


class AnswerCache:
    """Least recently used cache of the answers of all agents of a process. Thread-safe."""

    def __init__(self, *, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Question, tuple[object, KeptAnswer]] = OrderedDict()
        #: Searches with and without a cached answer.
        self.hits = 0
        self.misses = 0

    @property
    def kept_bytes(self) -> int:
        """Return the estimated size of all answers."""
        with self._lock:
            shown = [passage for _, kept in self._kept.values() for passage in kept.passages]
            texts = sum(sys.getsizeof(passage.snippet) for passage in shown)
            return _ANSWER_BYTES * len(self._kept) + _PASSAGE_BYTES * len(shown) + texts

    def knows(self, question: Question) -> bool:
        """Return True if there is an answer, perhaps an outdated one. It counts as neither hit nor miss."""
        return question in self._kept

    def get(self, question: Question, revision: object) -> KeptAnswer | None:
        """Return the answer for this revision of the index, and forget an answer for another one."""
        with self._lock:
            known = self._kept.get(question)
            if known is not None and known[0] == revision:
                self.hits += 1
                self._kept.move_to_end(question)
                return known[1]
            self.misses += 1
            self._kept.pop(question, None)
            return None

    def put(self, question: Question, revision: object, answer: KeptAnswer) -> None:
        """Keep a complete answer of a search during which the index stayed at this revision."""
        with self._lock:
            self._kept[question] = revision, answer
            self._kept.move_to_end(question)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
