"""The index of an agent: its generations, and the way of a document into one."""

from __future__ import annotations
