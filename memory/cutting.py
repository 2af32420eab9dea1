"""How a document of this agent is cut: the chunks that are indexed, and paid for."""

from __future__ import annotations

from memory.chunking import chunk_text, text_hash
from memory.diffing import CutChunk
from memory.embedding.provider import EmbeddingProvider
from schemas.settings_sections import Chunking

#: UTF-8 bytes of a chunk where no provider says how many it takes.
_MAX_BYTES = 8191


def byte_limit(provider: EmbeddingProvider | None) -> int:
    """UTF-8 bytes that a chunk may have at most."""
    return provider.limits.input_bytes if provider is not None else _MAX_BYTES


def cut_document(text: str, chunking: Chunking, provider: EmbeddingProvider | None) -> list[CutChunk]:
    """Return the chunks that hold more than white space, each short enough for the provider."""
    chunks = chunk_text(text, tokens=chunking.tokens, overlap=chunking.overlap, max_bytes=byte_limit(provider))
    kept = (chunk for chunk in chunks if chunk.text.strip())
    return [
        CutChunk(ordinal, chunk.start_line, chunk.end_line, chunk.text, text_hash(chunk.text))
        for ordinal, chunk in enumerate(kept)
    ]
