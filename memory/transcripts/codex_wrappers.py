"""What Codex sends in the user's place, or around what a person wrote (facts from its transcripts)."""

from __future__ import annotations

import re

#: Elements whose text the program wrote: a block that begins with one is scaffolding as a whole.
_SCAFFOLDING = re.compile(
    r"\s*(?:<(?:environment_context|user_instructions|instructions|turn_aborted|permissions instructions|skill"
    r"|skills_instructions|apps_instructions|plugins_instructions|personality_spec|collaboration_mode|model_switch"
    r"|user_shell_command|user_action|subagent_notification|task-notification|codex_internal_context|hook_prompt)\b"
    r"|# AGENTS\.md instructions\b)",
    re.IGNORECASE,
)

#: An editor's extension puts what is open there above the person's words.
_REQUEST = re.compile(r"^## My request for Codex:[ \t]*", re.MULTILINE)
_CONTEXT = "# Context from my IDE setup:"


def user_text(text: str) -> str:
    """What the person wrote; empty for scaffolding."""
    if _SCAFFOLDING.match(text):
        return ""
    if text.lstrip().startswith(_CONTEXT) and (request := _REQUEST.search(text)):
        return text[request.end() :].strip()
    return text
