"""Text becomes vectors: providers, the cache that pays once, and batches filled across documents."""

from __future__ import annotations
