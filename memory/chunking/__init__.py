"""Chunks of a text by lines and tokens, and the words in them."""

from __future__ import annotations
