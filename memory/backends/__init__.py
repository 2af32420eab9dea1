"""Backends: search programs in place of recalld's own index, and the fallback to that index when they fail."""
