"""Identity of an index: every setting and version that decides the contents of its rows.

All processes compute it alike from settings alone, without secrets. When it changes, a new generation is built beside
the old one (`memory.index.generations`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from memory.chunking.chunker import CHUNKING_VERSION
from memory.chunking.segmenting import SEGMENTER_VERSION
from memory.embedding.selection import NO_VECTORS, facts_in
from memory.redaction import redaction_facts
from memory.transcripts.folding import TRANSCRIPT_VERSION
from schemas.settings import MemorySettings

#: Version of tables that no migration can convert.
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Identity of an index: `digest` has 32 hex characters, `description` holds the same facts as sorted JSON."""

    digest: str
    description: str


def fingerprint(memory: MemorySettings, provider_identity: str) -> Fingerprint:
    """Return the identity of the index that these settings ask for.

    `provider_identity` is `EmbeddingProvider.identity`, or `NO_VECTORS`.
    """
    facts = {
        "chunking": [CHUNKING_VERSION, memory.chunking.tokens, memory.chunking.overlap],
        "embedding": provider_identity,
        "redaction": redaction_facts(memory),
        "schema": SCHEMA_VERSION,
        "segmenter": SEGMENTER_VERSION,
        "transcripts": TRANSCRIPT_VERSION,
    }
    description = json.dumps(facts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    digest = hashlib.blake2b(description.encode(), digest_size=16).hexdigest()
    return Fingerprint(digest, description)


def embedding_of(description: str | None) -> str:
    """Return the provider identity in a fingerprint's description, `NO_VECTORS` without a description."""
    return str(json.loads(description).get("embedding", NO_VECTORS)) if description else NO_VECTORS


def name_in(identity: str) -> str:
    """Return the provider's name in its identity, "none" without a provider."""
    return str(facts_in(identity).get("provider", "none"))


def redaction_of(description: str) -> object:
    """Return the redaction rules in a fingerprint's description, None if it has none."""
    facts = json.loads(description)
    return facts.get("redaction") if isinstance(facts, dict) else None
