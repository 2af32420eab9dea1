"""The task queue: the broker, its actors, pending marks and the workers that run them."""

from __future__ import annotations
