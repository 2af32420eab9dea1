"""Memory of an agent: documents, chunks, embeddings, the store, search and the query service."""

from __future__ import annotations
