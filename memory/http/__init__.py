"""HTTP for every port of recalld: listening, limits for clients, the checks before a request, and refusals."""

from __future__ import annotations
