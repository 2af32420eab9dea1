"""The outside world becomes events: files are watched, compared with the index, and differing documents are queued.

Nothing here reads a document or writes an index. A producer only ever says "look there".
"""

from __future__ import annotations
