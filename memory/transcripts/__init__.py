"""Transcripts: the conversations that agents' programs write, line by line, become chunks of speech."""
