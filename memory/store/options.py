"""What a store is told when it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.settings_sections import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How to open an index.

    `vector_enabled`: keep and search vectors at all. `extension_path`: the sqlite-vec library, None for
    the installed one. `busy_timeout_seconds`: how long a writer waits for another process's transaction.
    """

    vector_enabled: bool = True
    extension_path: Path | None = None
    busy_timeout_seconds: float = 10.0

    @classmethod
    def of(cls, store: StoreSettings) -> StoreOptions:
        """The options that the settings ask for."""
        return cls(vector_enabled=store.vector.enabled, extension_path=store.vector.extension_path)
