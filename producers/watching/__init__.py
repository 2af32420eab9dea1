"""Watchers of folders: inotify, the system's own, and polling."""

from __future__ import annotations
