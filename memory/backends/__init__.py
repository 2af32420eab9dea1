"""Backends: what answers an agent's searches in place of recalld's own index, and what answers when they fail."""
