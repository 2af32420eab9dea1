"""Life cycle of memory around a conversation: flush, pruning, session notes, and the memory in a prompt."""
