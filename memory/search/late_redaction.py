"""Secrets that an index shows and the settings hide: it was made with other rules, and answers until a new one does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memory.index.fingerprint import redaction_of
from memory.redaction import ASKING, redaction_facts, redactor_for
from memory.search.retrieval import Found
from memory.store.reader import StoreReader
from schemas.settings import MemorySettings


class Hiding:
    """Redacts the texts of one answer anew. They share the time that patterns may take (see `redactor_for`)."""

    def __init__(self, memory: MemorySettings) -> None:
        self._memory = memory
        self._redactors: dict[str, Callable[[str], str]] = {}

    @classmethod
    def needed(cls, reader: StoreReader, memory: MemorySettings) -> Hiding | None:
        """None where the index was redacted as the settings want it."""
        description = reader.meta("identity")
        same = description is not None and redaction_of(description) == redaction_facts(memory)
        return None if same else cls(memory)

    def text(self, text: str, *, source: str) -> str:
        """Raises like a `Redactor`: nothing may be shown then."""
        redact = self._redactors.get(source)
        if redact is None:
            redact = self._redactors[source] = redactor_for(self._memory, source, budget=ASKING)
        return redact(text)

    def found(self, found: Found) -> Found:
        """The same hits, their texts redacted. Raises like `text`."""
        hits = tuple(
            (fused, replace(row, text=self.text(row.text, source=row.key.source))) for fused, row in found.hits
        )
        return replace(found, hits=hits)
