"""Errors of a store."""

from __future__ import annotations

from schemas.errors import RecalldError, Transient


class StoreFull(Transient):
    """There is no space left on the disk of the index. Free some; indexing continues without a restart."""


class NoRoom(StoreFull):
    """A new generation does not fit on the disk beside the present one, so it is not begun."""


class Superseded(Transient):
    """The generation to write has changed meanwhile. The job repeats with the new one; nothing is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=0.2)


class NotOwner(Superseded):
    """Another process owns the indexes of the home, so this one does not replace a generation."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after = 1.0


class StoreBusy(Transient):
    """Another process holds the write lock for longer than the busy timeout."""


class StoreAway(Transient):
    """The server of the store does not answer. The work repeats when it is back."""


class StoreRefuses(StoreAway):
    """The server of the store refuses the user, the password or the database. Work repeats: an operator mends it."""


class StoreCorrupt(RecalldError):
    """The index file is damaged. It is set aside and rebuilt from the cache and the files.

    `generation` is the name to set aside (`GenerationWriter.set_aside`), None when it is not known.
    """

    def __init__(self, message: str, *, generation: str | None = None) -> None:
        super().__init__(message)
        self.generation = generation


class StoreUnreadable(RecalldError):
    """The index file cannot be opened; the message has the reason and the remedy."""


class OtherFormat(StoreUnreadable):
    """The index has the format of another version. A new one is built beside it, from the files and its contents."""


class KeywordsUnavailable(Transient):
    """This process's SQLite has no FTS5: it can search vectors, but neither search nor write keywords."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60.0)


class VectorSearchUnavailable(RecalldError):
    """Vectors are stored and cannot be searched in this process."""


class CheckUnfinished(RecalldError):
    """The check of an index exceeded its time limit."""
