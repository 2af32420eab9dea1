"""Secrets leave a message before anything is kept or shown of it."""

from __future__ import annotations

from collections.abc import Callable

from memory.transcripts.transcript_format import AGENT, ASSISTANT, SUBAGENT, USER, Said

#: Speakers whose names are not the transcript's.
_OWN_NAMES = frozenset((USER, ASSISTANT, AGENT, SUBAGENT))


def redacted(said: Said, redact: Callable[[str], str]) -> Said:
    """The message without its secrets; `redact` is called once for its text, and for a name that the file gave."""
    speaker = said.speaker if said.speaker in _OWN_NAMES else redact(said.speaker)
    return Said(speaker, redact(said.text), said.said_at)
