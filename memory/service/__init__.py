"""Read-only query service over HTTP. It can import nothing that writes an index."""

from __future__ import annotations
