"""What can go wrong in a store."""

from __future__ import annotations

from schemas.errors import RecalldError, Transient


class StoreFull(Transient):
    """There is no space left where the index lives. Free some; indexing goes on by itself."""


class NoRoom(StoreFull):
    """A new generation beside the one that answers would not fit on the disk, so it is not begun."""


class Superseded(Transient):
    """Another generation was begun, given up or put in place meanwhile: look again at what is to be written, and with
    which provider. Nothing is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=0.2)


class SettingsOlder(Superseded):
    """The index is, or is being, made by processes that read their settings later than this one: it is left to them."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after = 2.0


class StoreBusy(Transient):
    """Another process holds the write lock for longer than the busy timeout."""


class StoreCorrupt(RecalldError):
    """The index file is damaged. It is set aside and rebuilt from the cache and the files.

    `generation` is the name to set aside (`GenerationWriter.set_aside`), None when it is not known.
    """

    def __init__(self, message: str, *, generation: str | None = None) -> None:
        super().__init__(message)
        self.generation = generation


class StoreUnreadable(RecalldError):
    """The index file cannot be opened; the message says why and what to do."""


class OtherVersion(StoreUnreadable):
    """Another version of recalld wrote the index. It is left alone; `recalld rebuild` makes one that replaces it."""


class KeywordsUnavailable(Transient):
    """This process's SQLite has no FTS5: keywords can be neither searched nor written, vectors can be searched."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60.0)


class VectorSearchUnavailable(RecalldError):
    """Vectors are stored and cannot be searched in this process."""


class CheckUnfinished(RecalldError):
    """Whether an index holds together could not be found out in the time there was."""
