"""Life cycle of memory around a conversation: flush, pruning, session notes, and what a prompt gets."""
