"""Interface of the sources that report changes in folders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from schemas.errors import Transient


class WatchLimitReached(Transient):
    """Raised when the system grants no further watch. The message names the limit and its setting."""


@dataclass(slots=True)
class ChangeSet:
    """Changes that a source reported together.

    Each has a folder and a name in it. `documents` may be some. `folders` are folders and links that came, went or
    changed; without a name, the watched folder itself did.
    """

    documents: dict[tuple[str, str], None] = field(default_factory=dict)
    folders: dict[tuple[str, str], None] = field(default_factory=dict)
    overflowed: bool = False


class ChangeSource(ABC):
    """Changes in watched folders, as a system reports them. The constructor may raise `WatchLimitReached`."""

    #: True if a watch covers all that is below a folder.
    recursive: bool

    @abstractmethod
    def watch(self, folder: str, *, recursive: bool = False) -> None:
        """Watch a folder, unless it is gone, or may not be listed and is a condition of the scan.

        Raises:
            WatchLimitReached: the system grants no further watch.
        """

    @abstractmethod
    def unwatch(self, folder: str) -> None:
        """Stop watching a folder."""

    @abstractmethod
    def changes(self) -> Iterator[ChangeSet]:
        """Yield the changes until `close`. For one thread."""

    @abstractmethod
    def close(self) -> None:
        """End `changes` and release all watches."""
