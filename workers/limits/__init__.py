"""Limits that all workers share: request rate, cool-down, and claims on texts to embed."""

from __future__ import annotations
