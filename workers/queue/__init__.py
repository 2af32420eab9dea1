"""The queue: the broker, pending marks, and the state beside them."""

from __future__ import annotations
