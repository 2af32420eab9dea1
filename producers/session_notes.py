"""Notes of sessions that ended, written into the workspace of their agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from glob import escape
from pathlib import Path

import structlog

from memory.context.note_files import create_note, rename_note
from memory.context.session_notes import last_words, note_name, session_note, slug_of, slug_prompt
from memory.documents.agent_files import AgentFiles
from memory.documents.roots import archived_path
from memory.redaction import redactor_for
from memory.transcripts.transcript_format import Said
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: Tokens of a chat model's answer at most.
_SLUG_TOKENS = 32


class SessionNotes:
    """Writer of notes, on two threads: no note waits for a chat model. For the thread of the event router.

    Claude Code and OpenClaw tell when a session ends. Codex does not, so its last session ends where another begins.
    """

    def __init__(self, files: Mapping[str, AgentFiles]) -> None:
        self._files = files
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="session-notes")
        self._naming = ThreadPoolExecutor(1, thread_name_prefix="session-names")
        self._codex: dict[str, tuple[str, ...]] = {}

    def note(self, agent: AgentSettings, event: Event) -> None:
        """Write the notes of the sessions that ended with an event, in the background."""
        if not agent.context.session_notes.enabled:
            return
        ended = event.paths if event.kind == "ended" else ()
        if event.program == "codex" and event.kind == "session-start":
            ended = tuple(path for path in self._codex.pop(agent.id, ()) if path not in event.paths)
        elif event.program == "codex" and event.paths:
            self._codex[agent.id] = event.paths
        at = datetime.now(agent.context.zone).astimezone(agent.context.zone)
        for path in ended:
            self._writing.submit(self._write, agent, path, event.program or "", at)

    def close(self) -> None:
        """Write the notes that wait, and finish the name that is asked for; other notes get none."""
        self._writing.shutdown()
        self._naming.shutdown(cancel_futures=True)

    def _write(self, agent: AgentSettings, path: str, program: str, at: datetime) -> None:
        try:
            # The session may have begun anew under its old name by now, and have left its past as an archive.
            for candidate in (path, *_archives(path)[:1]):
                key = self._files[agent.id].key_of(candidate)
                said = self._said(agent, key) if key is not None else []
                if key is not None and said:
                    session = Path(path).name.partition(".")[0]
                    text = session_note(said, at=at, session=session, program=program, transcript=key.path)
                    note = create_note(agent.workspace, note_name(at), text)
                    self._naming.submit(_name, agent, note, at, said)
                    log.info("session_note_written", agent=agent.id, path=note)
                    return
            log.info("session_without_words", agent=agent.id)
        except Exception as error:
            is_known = isinstance(error, (RecalldError, OSError))
            log.warning("session_note_failed", agent=agent.id, reason=str(error), exc_info=not is_known)

    def _said(self, agent: AgentSettings, key: DocumentKey) -> list[Said]:
        with suppress(RecalldError), self._files[agent.id].opened(key, settled=False) as opened:
            return last_words(
                opened.lines(),
                messages=agent.context.session_notes.messages,
                redact=redactor_for(agent, SESSIONS_SOURCE),
                format=opened.format,
            )
        return []


def _archives(path: str) -> list[str]:
    """Return what a transcript's file was before its session began anew, the newest first."""
    found = (str(one) for one in Path(path).parent.glob(f"{escape(Path(path).name)}.reset.*"))
    return sorted((one for one in found if archived_path(one) == path), reverse=True)


def _name(agent: AgentSettings, note: str, at: datetime, said: Sequence[Said]) -> None:
    """Rename a note after the name that a chat model gives to the conversation, if one is configured and answers."""
    settings = agent.context.session_notes.slug
    if settings.base_url is None or settings.model is None:
        return
    from openai import OpenAI, OpenAIError

    key = settings.api_key.get_secret_value() if settings.api_key is not None else "none"
    try:
        with OpenAI(base_url=settings.base_url, api_key=key, timeout=settings.timeout_seconds, max_retries=0) as client:
            answer = client.chat.completions.create(
                model=settings.model,
                messages=[{"role": "user", "content": slug_prompt(said)}],
                max_tokens=_SLUG_TOKENS,
            )
    except OpenAIError as error:
        log.warning("session_note_without_name", reason=type(error).__name__)
        return
    slug = slug_of(answer.choices[0].message.content or "") if answer.choices else ""
    if slug:
        rename_note(agent.workspace, note, note_name(at, slug))
