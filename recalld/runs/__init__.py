"""Commands that index and wait: `index`, `rebuild` and `backfill`, with their estimates and reports."""

from __future__ import annotations
