"""Documents on disk: two sources, notes and transcripts, found, opened safely and compared with the index."""

from __future__ import annotations
