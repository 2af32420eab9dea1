"""Marks around text that recalld puts into a conversation. Readers of transcripts leave out the enclosed text."""

from __future__ import annotations

import re
from typing import Literal

from memory.transcripts.transcript_format import CONTEXT_MARK as MARK

#: Beginnings of the names of elements that recalld, Claude Code and Codex put around text for a model.
_ELEMENTS = (
    *(MARK, "system", "instructions", "permissions", "user_instructions", "environment_context", "turn_aborted"),
    *("user-prompt-submit-hook", "hook_prompt", "command-", "local-command", "bash-", "task-notification"),
)
_TAG = re.compile(rf"<(?=[^\w<]*(?:{'|'.join(_ELEMENTS)}))", re.IGNORECASE)

Kind = Literal["memory", "standing", "flush", "session-note"]


def marked(text: str, *, kind: Kind) -> str:
    """Return the text as one element, on lines of its own. Tags of programs inside of the text lose their meaning."""
    return f'<{MARK} kind="{kind}">\n{_TAG.sub("&lt;", text)}\n</{MARK}>'
