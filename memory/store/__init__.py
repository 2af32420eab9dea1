"""One generation of one agent's index: documents, chunks, vectors and keywords."""

from __future__ import annotations
