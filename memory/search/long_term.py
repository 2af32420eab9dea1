"""Long-term memory is the owner's alone: sessions that others may listen to neither find it nor read it."""

from __future__ import annotations

from collections.abc import Callable

from memory.agent_files import AgentFiles, DocumentRefused
from memory.document_roots import LONG_TERM_NAMES
from memory.scanning import MEMORY_SOURCE
from memory.search.scope import Session
from schemas.documents import DocumentKey
from schemas.errors import RecalldError

_NAMES = frozenset(name.casefold() for name in LONG_TERM_NAMES)


def withheld_from(session: Session) -> Callable[[DocumentKey], bool] | None:
    """Which documents a search for this session must not find; None when it may find all."""
    return None if session.is_private else is_long_term


def is_long_term(key: DocumentKey) -> bool:
    """Whether a document is long-term memory by its name: MEMORY.md, wherever it lies and however it is written.

    A disk that does not tell upper from lower case opens the file by any of the spellings.
    """
    return key.source == MEMORY_SOURCE and key.path.rpartition("/")[2].casefold() in _NAMES


def resolve_for(session: Session, files: AgentFiles, path: str) -> DocumentKey:
    """The document that a path from outside names, if the session may read it.

    Raises:
        DocumentRefused: like `AgentFiles.resolve`; to who may not read it, long-term memory is no document.
    """
    key = files.resolve(path)
    if not session.is_private and (is_long_term(key) or _is_the_same_file(files, key)):
        raise DocumentRefused("long-term memory is for private sessions")
    return key


def _is_the_same_file(files: AgentFiles, key: DocumentKey) -> bool:
    """Whether a disk with rules of its own, or a hard link, gives long-term memory this name, too."""
    if key.source != MEMORY_SOURCE:
        return False
    try:
        asked = files.stat(key)
        kept = [files.stat(DocumentKey(MEMORY_SOURCE, name)) for name in LONG_TERM_NAMES]
    except RecalldError:
        return True  # rather refused than shown to strangers
    return asked is not None and any(stat is not None and stat.inode == asked.inode for stat in kept)
