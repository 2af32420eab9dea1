"""Notes of sessions that ended, written into the workspace of their agent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue

import structlog

from memory.context.note_files import create_note, extend_note, notes_with, rename_note
from memory.context.session_notes import (
    LastWords,
    digest_of,
    last_words,
    note_name,
    session_note,
    slug_of,
    slug_prompt,
    unnoted,
)
from memory.documents.agent_files import AgentFiles
from memory.documents.content import DocumentGone, DocumentRefused
from memory.documents.note_facts import NoteFacts
from memory.documents.roots import archive_time, archives_of
from memory.redaction import redactor_for
from memory.transcripts.transcript_format import Message
from producers.hook_events import Hook, event_of
from producers.session_ends import ENDED, NOTED, OPEN, EndUnkept, SessionEnd, SessionEnds
from schemas.conditions import ConditionCode
from schemas.documents import SESSIONS_SOURCE, DocumentKey
from schemas.ports import ConditionReporter, Event
from schemas.settings import AgentSettings, Settings

log = structlog.get_logger(__name__)

#: Seconds until notes that could not be written are tried again.
RETRY_SECONDS = 60.0

#: Seconds by which a hook may come after the archive of the session that it ends.
_LATE_SECONDS = 10.0

#: Tokens of a chat model's answer at most, and its bytes.
_SLUG_TOKENS, _SLUG_BYTES = 32, 64 * 1024


class SessionNotes:
    """Writer of notes. The end of a session is recorded in the home until its note is on the disk.

    Claude Code and OpenClaw report the end of a session. Codex does not, so its sessions end when another begins. One
    thread writes notes, another thread names them; stopping does not wait for names.
    """

    def __init__(self, settings: Settings, files: Mapping[str, AgentFiles], reporter: ConditionReporter) -> None:
        enabled = (agent for agent in settings.agents if agent.enabled and agent.context.session_notes.enabled)
        self._agents = {agent.id: agent for agent in enabled}
        self._settings, self._files, self._reporter = settings, files, reporter
        self._ends = SessionEnds(settings.home)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="session-notes")
        self._unnamed: SimpleQueue[tuple[AgentSettings, str, datetime, Sequence[Message]] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._next_try = 0.0
        if self._agents:
            threading.Thread(target=self._name_notes, name="session-names", daemon=True).start()
            self.look(time.monotonic())

    def note(self, event: Event) -> None:
        """Record the end of a session that an event reports, and write its note in the background.

        Raises:
            EndUnkept: the end could not be recorded; the event has to come again.
        """
        if event.agent not in self._agents or not event.paths:
            return
        is_codex, ends = event.program == "codex", []
        try:
            if is_codex and event.kind == "session-start":
                is_open = (event.agent, OPEN)
                open_ends = [end for end in self._ends.all() if (end.agent, end.state) == is_open]
                ends = [replace(end, state=ENDED) for end in open_ends if end.path not in event.paths]
            elif is_codex or event.kind == "ended":
                state = ENDED if event.kind == "ended" else OPEN
                # Further paths are those of sub-agents.
                ends = [SessionEnd(event.at or time.time(), event.agent, event.paths[0], event.program or "", state)]
            for end in ends:
                self._ends.put(end)
        except EndUnkept as error:
            self._reporter.report(ConditionCode.SESSION_ENDS_UNKEPT, error=str(error.strerror))
            raise
        if any(end.state == ENDED for end in ends):
            self._submit()

    def look(self, now: float) -> None:
        """Try again, once in `RETRY_SECONDS`, to write the notes that wait. `now` is monotonic."""
        if self._agents and now >= self._next_try:
            self._next_try = now + RETRY_SECONDS
            self._submit()

    def close(self) -> None:
        """Finish the note that is being written. The next process writes the pending ones."""
        self._closing.set()
        self._unnamed.put(None)
        self._writing.shutdown()

    def _submit(self) -> None:
        if not self._closing.is_set():
            self._writing.submit(self._write_notes)

    def _write_notes(self) -> None:
        """Write all pending notes, the earliest first. Report ends and notes that cannot be written."""
        try:
            self._ends.reserve()
            self._reporter.resolve(ConditionCode.SESSION_ENDS_UNKEPT)
            ends = self._ends.all()
            for end in ends:
                if end.hook:
                    self._read_hook(end)
                elif end.state == ENDED and end.agent not in self._agents:
                    self._ends.drop(end)
            for agent in self._agents.values():
                self._write_notes_of(agent, [end for end in ends if (end.agent, end.state) == (agent.id, ENDED)])
        except OSError as error:
            self._reporter.report(ConditionCode.SESSION_ENDS_UNKEPT, error=error.strerror or str(error))
        except Exception:
            log.exception("session_notes_failed")  # tried again

    def _write_notes_of(self, agent: AgentSettings, ends: Sequence[SessionEnd]) -> None:
        waiting, reason = len(ends), ""
        for end in ends:
            if self._closing.is_set():
                return
            try:
                self._write(agent, end)
                waiting -= 1
            except OSError as error:
                reason = f"{agent.workspace}: {error.strerror}"
                break  # a disk that takes no note takes no other one, either
            except Exception as error:  # noqa: BLE001 - reported as a condition, and tried again
                reason = str(error)
        if waiting:
            self._reporter.report(ConditionCode.SESSION_NOTES_WAIT, agent=agent.id, notes=waiting, reason=reason)
        else:
            self._reporter.resolve(ConditionCode.SESSION_NOTES_WAIT, agent=agent.id)

    def _read_hook(self, end: SessionEnd) -> None:
        try:
            hook = Hook(*json.loads(end.hook))
            self.note(event_of(hook, self._settings, agent=hook.meant))
        except EndUnkept:
            return  # until a slot is free
        except (ValueError, TypeError) as error:  # an unclaimed or damaged hook
            log.info("hook_refused", reason=str(error))
        self._ends.drop(end)

    def _write(self, agent: AgentSettings, end: SessionEnd) -> None:
        """Write the note of a session, or add to it, and record it. A note that a person deleted is not written again.

        Raises:
            RecalldError: the transcript cannot be read.
            OSError: workspace or home refuses.
        """
        session = self._last_messages(agent, end)
        if session is None:
            # A program may still be writing the transcript, or be moving it.
            if time.time() > end.at + RETRY_SECONDS:
                self._ends.drop(end)
            return
        key, conversation = session
        facts = NoteFacts(Path(end.path).name.partition(".")[0], end.program, key.path)
        at = datetime.fromtimestamp(end.at, agent.context.zone).astimezone(agent.context.zone)
        written = (end.agent, end.path, NOTED)
        earlier = [record for record in self._ends.all() if (record.agent, record.path, record.state) == written]
        notes = notes_with(agent.workspace, str(facts).partition("\n")[0])
        path, words = unnoted(conversation, facts, notes, earlier[-1].last_digest if earlier else "")
        words = words[-agent.context.session_notes.messages :]
        if path is not None and words:
            extend_note(agent.workspace, path, session_note(words, at=at))
        elif words:
            path = create_note(agent.workspace, note_name(at), session_note(words, at=at, facts=facts))
            self._unnamed.put((agent, path, at, words))
            log.info("session_note_written", agent=agent.id, path=path)
        self._ends.put(replace(end, state=NOTED, last_digest=digest_of(conversation.messages[-1])))
        self._ends.drop(*earlier)

    def _last_messages(self, agent: AgentSettings, end: SessionEnd) -> tuple[DocumentKey, LastWords] | None:
        """Return the transcript of a session that ended, and its last messages; None without any message."""
        files = self._files[agent.id]
        for path in _transcripts(end.path, end.at):
            if (key := files.key_of(path)) is None:
                continue
            with suppress(DocumentGone, DocumentRefused), files.opened(key, settled=False) as opened:
                redact = redactor_for(agent, SESSIONS_SOURCE)
                words = last_words(opened.lines(), redact=redact, format=opened.format, until=end.at)
                if words.messages:
                    return key, words
        return None

    def _name_notes(self) -> None:
        while (note := self._unnamed.get()) is not None and not self._closing.is_set():
            try:
                _name(*note)
            except Exception as error:  # noqa: BLE001 - a note does without
                log.warning("session_note_without_name", reason=type(error).__name__)


def _transcripts(path: str, at: float) -> list[str]:
    """Return the files that may hold the session of a transcript that ended at `at`, the likeliest first."""
    archives = archives_of(path)
    # From that archive on, the file itself is of a session that began later.
    later = [archive for archive in archives if archive_time(archive) >= at - _LATE_SECONDS]
    return later[:1] or [path, *archives[-1:]]


def _name(agent: AgentSettings, note: str, at: datetime, messages: Sequence[Message]) -> None:
    """Rename a note with the title that a chat model gives to the conversation, if a model is configured.

    Raises:
        Exception: the model does not answer, or gives no title.
    """
    settings = agent.context.session_notes.slug
    if settings.base_url is None or settings.model is None:
        return
    from memory.embedding.providers.transport import post_json

    key = settings.api_key.get_secret_value() if settings.api_key is not None else "none"
    prompt = {"role": "user", "content": slug_prompt(messages)}
    answer = post_json(
        f"{settings.base_url.rstrip('/')}/chat/completions",
        {"model": settings.model, "messages": [prompt], "max_tokens": _SLUG_TOKENS},
        headers={"Authorization": f"Bearer {key}"},
        seconds=settings.timeout_seconds,
        answer_bytes=_SLUG_BYTES,
    )
    if slug := slug_of(answer["choices"][0]["message"]["content"] or ""):
        rename_note(agent.workspace, note, note_name(at, slug))
