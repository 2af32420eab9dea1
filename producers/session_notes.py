"""Notes of sessions that ended, written into the workspace of their agent."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import structlog

from memory.context.note_files import create_note
from memory.context.session_notes import EndedSession, last_words, note_name, session_note, slug_of, slug_prompt
from memory.documents.agent_files import AgentFiles
from memory.documents.roots import archived_path
from memory.redaction import redactor_for
from memory.transcripts.transcript_format import Said
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.errors import RecalldError
from schemas.ports import Event
from schemas.sections import Slug
from schemas.settings import AgentSettings

log = structlog.get_logger(__name__)

#: Tokens of a chat model's answer at most.
_SLUG_TOKENS = 32


class SessionNotes:
    """Writer of notes, on a thread of its own: nothing waits for a chat model. For the thread of the event router.

    Claude Code and OpenClaw tell when a session ends. Codex does not, so its last session ends where another begins.
    """

    def __init__(self, files: Mapping[str, AgentFiles]) -> None:
        self._files = files
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session-notes")
        self._closing = threading.Event()
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
            self._thread.submit(self._write, agent, path, event.program or "", at)

    def close(self) -> None:
        """Finish the notes that are begun; those that wait get no name from a model."""
        self._closing.set()
        self._thread.shutdown()

    def _write(self, agent: AgentSettings, path: str, program: str, at: datetime) -> None:
        try:
            written = self._written(agent, path, program, at)
        except (RecalldError, OSError) as error:
            log.warning("session_note_failed", agent=agent.id, reason=str(error))
        except Exception:
            log.exception("session_note_failed", agent=agent.id)
        else:
            log.info("session_note_written" if written else "session_without_words", agent=agent.id, path=written)

    def _written(self, agent: AgentSettings, path: str, program: str, at: datetime) -> str | None:
        settings, files = agent.context.session_notes, self._files[agent.id]
        # The session may have begun anew under its old name by now, and have left its past as an archive.
        for candidate in (path, *_archives(path)[:1]):
            key = files.key_of(candidate)
            said = self._said(agent, key) if key is not None else []
            if key is not None and said:
                slug = _slug(settings.slug, said) if not self._closing.is_set() else ""
                session = EndedSession(Path(path).name.partition(".")[0], program, key.path)
                text = session_note(said, session, at=at)
                return create_note(agent.workspace, note_name(at, slug), text) if text is not None else None
        return None

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
    folder, _, name = path.rpartition("/")
    with suppress(OSError):
        names = [one for one in os.listdir(folder) if archived_path(one) == name and ".reset." in one]  # noqa: PTH208
        return [f"{folder}/{one}" for one in sorted(names, reverse=True)]
    return []


def _slug(settings: Slug, said: Sequence[Said]) -> str:
    """Return the name that a chat model gives to a conversation, empty if none is configured or it fails."""
    if settings.base_url is None or settings.model is None:
        return ""
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
        return ""
    return slug_of(answer.choices[0].message.content or "") if answer.choices else ""
