"""Options for opening a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options for opening an index.

    `vector_enabled`: store and search vectors. `extension_path`: the sqlite-vec library, None for the installed one.
    `busy_timeout_seconds`: longest wait of a writer for another process's transaction.
    """

    vector_enabled: bool = True
    extension_path: Path | None = None
    busy_timeout_seconds: float = 10.0

    @classmethod
    def of(cls, store: StoreSettings) -> StoreOptions:
        """Return the options in the settings."""
        return cls(vector_enabled=store.vector.enabled, extension_path=store.vector.extension_path)
