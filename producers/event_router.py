"""Router of events from watchers, inbox and hooks, and scheduler of the comparisons of files and index."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import structlog

from memory.documents.agent_files import AgentFiles
from memory.documents.roots import is_transcript_name
from memory.status.pulses import Pulses
from memory.store.reader import StoreReader
from producers import spool
from producers.dispatcher import Dispatcher
from producers.hook_events import UnclaimedHook, event_of
from producers.hook_payloads import Hook
from producers.reconciler import START, ReconcileSchedule, reconcile
from producers.report import FilesReport
from producers.session_notes import SessionNotes
from producers.tailer import Tailer
from producers.watching.watcher import Watcher, WatchMode, WatchState
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.ports import ConditionReporter, Event, ProducerQueue
from schemas.settings import AgentSettings, Settings

log = structlog.get_logger(__name__)

#: Seconds that a comparison waits after a moved root or lost events.
SETTLE_SECONDS = 1.0

#: Seconds until a second comparison after a move: a job that read a document at its old place may still commit it.
SECOND_LOOK_SECONDS = 30.0

#: Seconds that the dispatcher gets to finish a flush.
SETTLED_WITHIN_SECONDS = 1.0

#: Seconds between two checks of the broker's epoch.
EPOCH_SECONDS = 5.0

_NOT_A_TRANSCRIPT = "not a transcript below this agent's session folders"

#: Seconds between two looks of the loop at `stop` and at the spool.
_STOP_SECONDS = 0.25


class EventRouter:
    """Listener of the watcher and handler of events. One thread calls `start`, `loop` and `close`."""

    def __init__(
        self,
        settings: Settings,
        queue: ProducerQueue,
        reporter: ConditionReporter,
        *,
        indexed: Callable[[AgentSettings], StoreReader | None],
        answering: Callable[[AgentSettings], StoreReader | None],
        building: Callable[[AgentSettings], bool],
        poll_interval_seconds: float,
        pulses: Pulses,
    ) -> None:
        self._pulse = pulses.of("comparing")
        self._settings = settings
        self._agents = {agent.id: agent for agent in settings.agents if agent.enabled}
        self._files = {agent.id: AgentFiles.of(settings, agent) for agent in self._agents.values()}
        self._queue = queue
        self._reporter = reporter
        self._indexed = indexed
        self._answering = answering
        self._building = building
        self._report = FilesReport(settings.home, self._agents, reporter)
        self._schedule = ReconcileSchedule(
            {agent.id: agent.sync.interval_minutes * 60 or None for agent in self._agents.values()},
            now=time.monotonic(),
        )
        self._wake = threading.Event()
        self._notes = SessionNotes(self._files)
        self._watcher = Watcher(self, poll_interval_seconds=poll_interval_seconds, pulse=pulses.of("watching"))
        self._epoch: str | None = None
        self._broker_was_away = False
        self._moved: set[str] = set()
        self._next_epoch = 0.0
        queue.hold_back(self._agents.keys(), held=False)  # of an earlier process
        self._unseen: set[str] = set()
        self._dispatcher = Dispatcher(
            self._agents,
            queue,
            reporter,
            Tailer(self._agents, self._files, indexed),
            on_recovered=lambda: self._request(self._agents, "the queue answers again"),
            pulse=pulses.of("hand-over"),
        )

    # The watcher's listener

    def on_change(self, agent: str, key: DocumentKey) -> None:
        """Route a changed document."""
        self._report.event(agent)
        self._dispatcher.touch(agent, key)

    def on_overflow(self) -> None:
        """Compare all agents: events were lost."""
        log.warning("file_events_lost")
        self._report.overflow()
        # Delayed: a storm of events causes at most one comparison a second.
        self._request(self._agents, "file events were lost", delay_seconds=SETTLE_SECONDS)

    def on_uncertain(self, agent: str) -> None:
        """Compare an agent whose roots appeared, vanished or moved."""
        self._moved.add(agent)
        self._request([agent], "what is watched changed", delay_seconds=SETTLE_SECONDS)

    # Events of inbox, spool and hooks

    def handle(self, event: Event) -> None:
        """Carry out an event from the inbox, the spool or a hook. Senseless events are logged."""
        agent = self._agents.get(event.agent)
        if agent is None:
            log.warning("event_refused", kind=event.kind, agent=event.agent, reason="unknown agent")
            return
        self._notes.note(agent, event)
        if event.kind == "ended":
            event = replace(event, kind="changed")
        if event.kind in ("changed", "compaction", "grew") and event.paths:
            self._look_at(agent, event)
        elif event.kind in ("reconcile", "changed", "compaction", "grew"):
            self._request([agent.id], event.kind, urgent=True)
        elif event.kind == "session-start":
            if agent.sync.on_session_start:
                self._request([agent.id], event.kind, urgent=True)
        elif event.kind == "flush":
            self._flush(agent.id)
        else:
            log.warning("event_refused", kind=event.kind, agent=event.agent, reason="unknown kind")

    def _flush(self, agent: str) -> None:
        """Queue everything that was written before this call, and wait until it is queued."""
        if not self._watcher.settle(agent):
            # Polled or not watched: only a comparison finds the changes.
            self._request([agent], "flush", urgent=True)
        self._dispatcher.flush(agent)
        self._dispatcher.settle(SETTLED_WITHIN_SECONDS)

    def _look_at(self, agent: AgentSettings, event: Event) -> None:
        """Hand over what an event names. Transcripts outside of the agent's folders are refused, never opened."""
        files = self._files[agent.id]
        due = []
        for path in event.paths:
            key = files.key_of(path)
            if key is None:
                if files.reason_of(path) is None:
                    self._refuse(agent.id, event.kind, path)
            elif event.kind == "changed":
                due.append(key)
            elif not key.is_transcript:
                self._report.refused(agent.id, event.kind, path, reason=_NOT_A_TRANSCRIPT)
            elif _is_barred(files, key):
                self._report.refused(agent.id, event.kind, path, reason="behind a symbolic link, or no regular file")
            elif event.kind == "compaction" and agent.sync.sessions.post_compaction_force:
                self._dispatcher.force(agent.id, key)
            else:
                self._dispatcher.touch(agent.id, key)
        if due:
            self._dispatcher.submit(agent.id, due)

    def _refuse(self, agent: str, kind: str, path: str) -> None:
        """Refuse a path that is no document, unless it is a folder of the agent's that changed."""
        roots = self._files[agent].watch_roots()
        if kind != "changed" or is_transcript_name(os.path.basename(path)):  # noqa: PTH119 - a plain string
            self._report.refused(agent, kind, path, reason=_NOT_A_TRANSCRIPT)
        elif ".." not in path.split("/") and any(
            Path(path).is_relative_to(root.path) for root in roots if root.recursive
        ):
            self._request([agent], "a folder changed", urgent=True)
        else:
            log.warning("event_refused", kind=kind, agent=agent, reason="not a document of this agent")

    # The scheduler's thread

    def start(self, stop: threading.Event) -> None:
        """Start the threads that hand over, watch every agent, then compare each for the first time.

        All watches come first: no change falls between watch and comparison, and no agent's edit waits for another
        agent's comparison.
        """
        self._dispatcher.start()
        self._watch_epoch()
        for agent in self._agents.values():
            if stop.is_set():
                return
            if agent.sync.watch:
                self._watcher.add(agent.id, self._files[agent.id])
            self._note_state(agent)
        for _ in self._agents:
            if stop.is_set():
                return
            self._compare_next()
            self._report.publish(now=time.monotonic())

    def loop(self, stop: threading.Event) -> None:
        """Compare what is due, deliver the spool and publish the state, until `stop`."""
        while not stop.is_set():
            self._wake.clear()
            self._pulse.busy("compares files and index")
            now = time.monotonic()
            self._drain_spool()
            if now >= self._next_epoch:
                self._next_epoch = now + EPOCH_SECONDS
                self._watch_epoch()
            self._report.publish(now=now)
            if not self._compare_next():
                self._pulse.idle()
                self._wake.wait(_STOP_SECONDS)

    def close(self) -> None:
        """Stop watching, hand over all waiting documents and remove the watch state."""
        self._watcher.close()
        self._notes.close()
        self._dispatcher.stop()
        self._report.close()

    def _compare_next(self) -> bool:
        due = self._schedule.take(now=time.monotonic())
        if due is None:
            return False
        agent, reason = due
        try:
            self._compare(self._agents[agent], reason)
        except Exception as error:  # noqa: BLE001 - reported as a condition, and tried again
            pause = self._schedule.failed(agent, now=time.monotonic())
            self._report.not_compared(agent, error=str(error), seconds=pause)
        else:
            self._schedule.done(agent, now=time.monotonic())
        return True

    def _compare(self, agent: AgentSettings, reason: str) -> None:
        if agent.sync.watch and reason != START:
            self._watcher.refresh(agent.id)
        report = reconcile(
            agent,
            self._files[agent.id],
            lambda: self._indexed(agent),
            self._queue,
            answering=lambda: self._answering(agent),
            building=lambda: self._building(agent),
        )
        self._note_state(agent)
        self._report.compared(agent.id, report.problems)
        write = log.info if report.marked or report.problems else log.debug
        numbers = {name: getattr(report, name) for name in ("on_disk", "new", "changed", "vanished")}
        write("files_compared", agent=agent.id, reason=reason, **numbers, seconds=round(report.seconds, 4))
        if agent.id in self._moved:
            self._moved.discard(agent.id)
            self._request([agent.id], "what was watched changed before", delay_seconds=SECOND_LOOK_SECONDS)

    def _note_state(self, agent: AgentSettings) -> None:
        if not agent.sync.watch:
            minutes = agent.sync.interval_minutes
            instead = f"files are compared every {minutes:g} minutes" if minutes else "files are compared on demand"
            state = WatchState(WatchMode.OFF, f"sync.watch is off; {instead}")
        else:
            state = self._watcher.state(agent.id)
        self._report.watched(agent.id, state)
        # Without events, only a comparison for a search finds a change before the next one.
        self._unseen = self._unseen - {agent.id} if state.mode is WatchMode.EVENTS else self._unseen | {agent.id}
        self._dispatcher.unseen(self._unseen)

    def _drain_spool(self) -> None:
        try:
            set_aside = spool.drain(self._settings.home, self._handle_safely)
        except OSError as error:
            self._reporter.report(ConditionCode.SPOOL_UNREADABLE, error=str(error))
            return
        if set_aside:
            self._reporter.report(ConditionCode.SPOOL_FILES_SET_ASIDE, files="; ".join(set_aside))

    def _handle_safely(self, found: Event | Hook) -> None:
        """Handle an event or a hook. A failure does not hold up later ones."""
        try:
            if isinstance(found, Hook):
                found = event_of(found, self._settings, agent=found.meant)
            self.handle(found)
        except UnclaimedHook as error:
            log.info("hook_refused", reason=str(error))  # programs send the hooks of all their sessions
        except Exception:
            log.exception("event_unreadable")

    def _watch_epoch(self) -> None:
        """Compare everything after the broker was away or lost data: it may have lost marks."""
        epoch = self._queue.epoch()
        if epoch is None:
            self._broker_was_away = True
            return
        if self._broker_was_away or self._epoch not in (None, epoch):
            log.warning("broker_came_back", lost_data=self._epoch not in (None, epoch))
            self._report.tell_again()
            self._dispatcher.tell_again()
            self._request(self._agents, "the broker came back")
        self._broker_was_away = False
        self._epoch = epoch

    def _request(self, agents: Iterable[str], reason: str, *, delay_seconds: float = 0.0, urgent: bool = False) -> None:
        self._schedule.request(agents, reason, now=time.monotonic(), delay_seconds=delay_seconds, urgent=urgent)
        self._wake.set()


def _is_barred(files: AgentFiles, key: DocumentKey) -> bool:
    """Return True for a path that must not be opened: a link below a folder, or no regular file."""
    try:
        return files.stat(key) is None and os.path.lexists(files.path_of(key))
    except RecalldError:
        return False  # the worker that reads it records the reason
