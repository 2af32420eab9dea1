"""One command a file: `command` in `recalld.commands.<name>`."""

from __future__ import annotations
