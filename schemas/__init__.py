"""Wire contracts of recalld: settings, events, jobs, answers and the small ports between rooms.

Nothing here does I/O and nothing here imports another room.
"""

from __future__ import annotations
