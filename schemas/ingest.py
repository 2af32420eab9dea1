"""Messages of the door by which machines send documents to a fleet (`producers.door`)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from schemas.search import Wire

#: Documents of one request, and bytes of one part as it is sent (Zstandard) and of its content.
MOST_DOCUMENTS = 1_000
MOST_PART_BYTES = 1_000_000
MOST_CONTENT_BYTES = 8_000_000

Machine = Annotated[str, Field(pattern=r"^[a-z0-9]{16}$", description="Id of the machine's home")]
Agent = Annotated[str | None, Field(max_length=129, description="Agent of the token's tenant; its first one if absent")]
SourceName = Annotated[Literal["memory", "sessions"], Field(description="memory for notes, sessions for transcripts")]
DocumentPath = Annotated[str, Field(min_length=1, max_length=1024, description="Path in the agent's memory, relative")]
Digest = Annotated[
    str, Field(pattern=r"^(|[0-9a-f]{32})$", description="Running digest of the content; empty for none")
]


@dataclass(frozen=True, slots=True)
class Extent:
    """Content of a document up to a place: its bytes as sent, and their running digest."""

    size: int = 0
    digest: str = ""


def running_digest(before: str, content: bytes) -> str:
    """Return the digest of content that follows content with the digest `before`."""
    return hashlib.blake2b(before.encode() + content, digest_size=16).hexdigest()


class SentDocument(Wire):
    """Document of a machine, by name."""

    source: SourceName
    path: DocumentPath


class DocumentExtent(SentDocument):
    """Content of a document that the fleet has, up to `size` bytes with the running `digest`."""

    size: int = 0
    digest: str = ""


class DocumentsRequest(Wire):
    """Documents of a machine, to compare or to delete."""

    machine: Machine
    agent: Agent = None
    documents: Annotated[tuple[SentDocument, ...], Field(max_length=MOST_DOCUMENTS)]


class ExtentsAnswer(Wire):
    """Content that the fleet has of the requested documents, in their order."""

    documents: tuple[DocumentExtent, ...]


class Accepted(Wire):
    """Content of a document up to the end of an accepted part, or up to which the fleet has it."""

    size: int = 0
    digest: str = ""


class Deleted(Wire):
    """Number of documents that were named."""

    documents: int
