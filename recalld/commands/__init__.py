"""Commands of `recalld`; `recalld.cli` says which module holds which."""

from __future__ import annotations
