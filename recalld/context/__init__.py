"""Memory around a conversation, for programs of one's own: the code is `recalld.client`'s, and needs nothing else.

Where all of recalld is installed, `append_note` writes the note of a flush.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recalld.client.context import Conversation, SilentFilter

if TYPE_CHECKING:
    from memory.context.note_files import append_note

__all__ = ["Conversation", "SilentFilter", "append_note"]


def __getattr__(name: str) -> object:
    if name != "append_note":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memory.context.note_files import append_note

    return append_note
