"""The queue: the broker, pending marks, and what is kept beside them."""

from __future__ import annotations
