"""Producers of one machine: a constant number of threads, however many agents.

watch-events / watch-polling   events of the files                       -> hand-over
hand-over                       debounce, looks at transcripts, the queue
inbox                           events of clients                         -> hand-over, schedule
hooks                           hooks by HTTP, if `hooks.port` is set      -> hand-over, schedule
session-notes, session-names    notes of sessions that ended, and their names, where an agent has them
the caller's thread             comparisons of files and index, spool, state for status
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import structlog

from memory.documents.agent_files import AgentFiles
from memory.documents.roots import is_transcript_name
from memory.status.processes import Pulse, Pulses
from producers import spool
from producers.dispatcher import Dispatcher
from producers.hook_events import Hook, UnclaimedHook, event_of
from producers.reconciler import START, Indexes, ReconcileSchedule, reconcile
from producers.report import FilesReport, WatchMode, WatchState
from producers.session_ends import EndUnkept
from producers.session_notes import SessionNotes
from producers.tailer import Tailer
from producers.watcher import Watcher
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey
from schemas.errors import RecalldError
from schemas.ports import ConditionReporter, Event, EventInbox, ProducerQueue, SpooledUsage
from schemas.settings import AgentSettings, Settings

log = structlog.get_logger(__name__)

#: Seconds that a comparison waits after a moved root or lost events.
SETTLE_SECONDS = 1.0

#: Seconds until a second comparison after a folder moved: a job may still commit a document of the old folder.
SECOND_LOOK_SECONDS = 30.0

#: Seconds that the dispatcher gets to finish a flush.
SETTLED_WITHIN_SECONDS = 1.0

#: Seconds between two checks of the broker's epoch and of the folders behind the watched paths.
EPOCH_SECONDS = 5.0

#: Seconds between two checks of `stop` and of the spool.
_STOP_SECONDS = 0.25

#: Seconds for which the inbox reader waits for an event; stopping takes about as long.
TAKE_SECONDS = 1.0

_NOT_A_TRANSCRIPT = "not a transcript below this agent's session folders"

#: Kinds of events about documents. Without paths they are about all documents of the agent.
_OF_DOCUMENTS = ("changed", "compaction", "grew", "ended")


def run_producers(
    settings: Settings,
    queue: ProducerQueue,
    inbox: EventInbox,
    reporter: ConditionReporter,
    stop: threading.Event,
    indexes: Indexes,
    *,
    on_ready: Callable[[], None] | None = None,
    poll_interval_seconds: float = 5.0,
    pulses: Pulses | None = None,
    count: Callable[[SpooledUsage], None] = lambda _: None,
) -> None:
    """Watch, compare and queue until `stop` is set. `count` receives the usage that commands spooled.

    `on_ready` is called once, when every agent is watched and its first comparison was tried. At the end, documents in
    their quiet time are handed over. The threads report to `pulses`.

    Raises:
        UserError: the port for hooks cannot be opened.
    """
    pulses = pulses or Pulses()
    router = EventRouter(
        settings, queue, reporter, indexes, poll_interval_seconds=poll_interval_seconds, pulses=pulses, count=count
    )
    hooks = None
    if settings.hooks.port is not None:
        from producers.hook_server import HookServer  # without a port, starting does not wait for a web server's import

        hooks = HookServer(settings, settings.hooks.port, router.handle, reporter)
    inbox_stop, pulse = threading.Event(), pulses.of("inbox")
    arguments = (inbox, router.handle, inbox_stop, pulse)
    reader = threading.Thread(target=read_inbox, args=arguments, name="inbox", daemon=True)
    with ExitStack() as running:
        running.callback(router.close)
        router.start(stop)
        reader.start()
        pulse.belongs_to(reader)
        running.callback(reader.join)
        running.callback(inbox_stop.set)
        if hooks is not None:
            hooks.start()
            running.callback(hooks.stop)
        running.callback(pulses.close)
        if on_ready is not None and not stop.is_set():
            on_ready()
        router.loop(stop)


class EventRouter:
    """Listener of the watcher and handler of events. One thread calls `start`, `loop` and `close`."""

    def __init__(
        self,
        settings: Settings,
        queue: ProducerQueue,
        reporter: ConditionReporter,
        indexes: Indexes,
        *,
        poll_interval_seconds: float,
        pulses: Pulses,
        count: Callable[[SpooledUsage], None],
    ) -> None:
        self._count = count
        self._pulse = pulses.of("comparing")
        self._settings = settings
        self._agents = {agent.id: agent for agent in settings.agents if agent.enabled}
        self._files = {agent.id: AgentFiles.of(settings, agent) for agent in self._agents.values()}
        self._queue = queue
        self._reporter = reporter
        self._indexes = indexes
        self._report = FilesReport(settings.home, self._agents, reporter)
        self._schedule = ReconcileSchedule(
            {agent.id: agent.sync.interval_minutes * 60 or None for agent in self._agents.values()},
            now=time.monotonic(),
        )
        self._wake = threading.Event()
        self._notes = SessionNotes(settings, self._files, reporter)
        self._watcher = Watcher(self, poll_interval_seconds=poll_interval_seconds, pulse=pulses.of("watching"))
        self._epoch: str | None = None
        self._broker_was_away = False
        self._moved: set[str] = set()
        self._next_epoch = 0.0
        queue.hold_back(self._agents.keys(), active=False)  # of an earlier process
        self._unwatched: set[str] = set()
        self._dispatcher = Dispatcher(
            self._agents,
            queue,
            reporter,
            Tailer(self._agents, self._files, indexes.indexed),
            on_recovered=lambda: self._request(self._agents, "the queue answers again"),
            pulse=pulses.of("hand-over"),
        )

    # The watcher's listener

    def on_change(self, agent: str, key: DocumentKey) -> None:
        """Route a changed document."""
        self._report.event(agent)
        self._dispatcher.touch(agent, key)

    def on_uncertain(self, agent: str, *, events_lost: bool = False) -> None:
        """Compare an agent whose events were lost, or whose roots appeared, vanished or moved."""
        if events_lost:
            log.warning("file_events_lost", agent=agent)
            self._report.overflow(agent)
        else:
            self._moved.add(agent)
        # Delayed: a storm of events causes at most one comparison a second.
        reason = "file events were lost" if events_lost else "a watched folder changed"
        self._request([agent], reason, delay_seconds=SETTLE_SECONDS)

    # Events of inbox, spool and hooks

    def handle(self, event: Event) -> None:
        """Carry out an event from the inbox, the spool or a hook. Log events that make no sense.

        Raises:
            EndUnkept: the end of a session could not be recorded, and nothing else was done.
        """
        agent, kind = self._agents.get(event.agent), event.kind
        if agent is None or kind not in (*_OF_DOCUMENTS, "reconcile", "session-start", "flush"):
            reason = "unknown agent" if agent is None else "unknown kind"
            log.warning("event_refused", kind=kind, agent=event.agent, reason=reason)
            return
        self._notes.note(event)
        if kind == "flush":
            self._flush(agent.id)
        elif kind in _OF_DOCUMENTS and event.paths:
            self._look_at(agent, event)
        elif kind != "session-start" or agent.sync.on_session_start:
            self._request([agent.id], kind, urgent=True)

    def _flush(self, agent: str) -> None:
        """Queue all changes of before this call, and wait until they are queued."""
        if not self._watcher.settle(agent):
            # Polled or not watched: only a comparison finds the changes.
            self._request([agent], "flush", urgent=True)
        self._dispatcher.flush(agent)
        self._dispatcher.settle(SETTLED_WITHIN_SECONDS)

    def _look_at(self, agent: AgentSettings, event: Event) -> None:
        """Hand over an event's documents. Refuse transcripts outside of the agent's folders without opening them."""
        files, due, kind = self._files[agent.id], [], event.kind
        for path in event.paths:
            key, is_hint = files.key_of(path), kind != "changed"
            if key is not None and not is_hint:
                due.append(key)
            elif key is None and files.reason_of(path) is not None:
                continue  # left out
            elif not is_hint and not is_transcript_name(os.path.basename(path)):  # noqa: PTH119 - a plain string
                self._folder_changed(agent.id, path)
            elif key is None or not key.is_transcript:
                self._report.refused(agent.id, kind, path, reason=_NOT_A_TRANSCRIPT)
            elif _is_barred(files, key):
                self._report.refused(agent.id, kind, path, reason="behind a symbolic link, or no regular file")
            elif kind == "compaction" and agent.sync.sessions.post_compaction_force:
                self._dispatcher.force(agent.id, key)
            else:
                self._dispatcher.touch(agent.id, key)
        self._dispatcher.submit(agent.id, due)

    def _folder_changed(self, agent: str, path: str) -> None:
        """Compare all documents if a changed path that is no document lies in one of the agent's folders."""
        if self._files[agent].spans(path):
            self._request([agent], "a folder changed", urgent=True)
        else:
            log.warning("event_refused", kind="changed", agent=agent, reason="not a document of this agent")

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
            self._reconcile_next()
            self._report.publish(now=time.monotonic())

    def loop(self, stop: threading.Event) -> None:
        """Compare due agents, deliver the spool and publish the state, until `stop`."""
        while not stop.is_set():
            self._wake.clear()
            self._pulse.busy("compares files and index")
            now = time.monotonic()
            self._drain_spool()
            self._notes.look(now)
            if now >= self._next_epoch:
                self._next_epoch = now + EPOCH_SECONDS
                self._watch_epoch()
                for agent, root in self._watcher.follow_moved():
                    log.warning("folder_replaced", agent=agent)
                    self._report.moved(agent, root)
                    self.on_uncertain(agent)
            self._report.publish(now=now)
            if not self._reconcile_next():
                self._pulse.idle()
                self._wake.wait(_STOP_SECONDS)

    def close(self) -> None:
        """Stop watching, hand over all waiting documents and remove the watch state."""
        self._watcher.close()
        self._notes.close()
        self._dispatcher.stop()
        self._report.close()

    def _reconcile_next(self) -> bool:
        due = self._schedule.take(now=time.monotonic())
        if due is None:
            return False
        agent, reason = due
        try:
            self._reconcile(self._agents[agent], reason)
        except Exception as error:  # noqa: BLE001 - reported as a condition, and tried again
            pause = self._schedule.failed(agent, now=time.monotonic())
            self._report.not_compared(agent, error=str(error), seconds=pause)
        else:
            self._schedule.done(agent, now=time.monotonic())
        return True

    def _reconcile(self, agent: AgentSettings, reason: str) -> None:
        if agent.sync.watch and reason != START:
            self._watcher.refresh(agent.id)
        comparison = reconcile(agent, self._files[agent.id], self._indexes, self._queue)
        self._note_state(agent)
        self._report.compared(agent.id, comparison.problems)
        write = log.info if comparison.documents or comparison.problems else log.debug
        numbers = {name: getattr(comparison, name) for name in ("on_disk", "new", "changed", "vanished")}
        write("files_compared", agent=agent.id, reason=reason, **numbers, seconds=round(comparison.seconds, 4))
        if agent.id in self._moved:
            self._moved.discard(agent.id)
            self._request([agent.id], "a watched folder changed before", delay_seconds=SECOND_LOOK_SECONDS)

    def _note_state(self, agent: AgentSettings) -> None:
        if not agent.sync.watch:
            minutes = agent.sync.interval_minutes
            instead = f"files are compared every {minutes:g} minutes" if minutes else "files are compared on demand"
            state = WatchState(WatchMode.OFF, f"sync.watch is off; {instead}")
        else:
            state = self._watcher.state(agent.id)
        self._report.watched(agent.id, state)
        # Without events, only a comparison for a search finds a change before the next one.
        (self._unwatched.discard if state.mode is WatchMode.EVENTS else self._unwatched.add)(agent.id)
        self._dispatcher.set_unwatched(self._unwatched)

    def _drain_spool(self) -> None:
        try:
            set_aside = spool.drain(self._settings.home, self._handle_safely)
        except OSError as error:
            self._reporter.report(ConditionCode.SPOOL_UNREADABLE, error=str(error))
            return
        if set_aside:
            self._reporter.report(ConditionCode.SPOOL_FILES_SET_ASIDE, files="; ".join(set_aside))

    def _handle_safely(self, event: Event | Hook | SpooledUsage) -> None:
        """Handle the content of a spooled file. A failure does not hold up later files.

        Raises:
            EndUnkept: the file has to stay in the spool.
        """
        try:
            if isinstance(event, SpooledUsage):
                return self._count(event)
            self.handle(event_of(event, self._settings, agent=event.meant) if isinstance(event, Hook) else event)
        except EndUnkept:
            raise
        except UnclaimedHook as error:
            log.info("hook_refused", reason=str(error))  # programs send the hooks of all their sessions
        except Exception:
            log.exception("event_unreadable")

    def _watch_epoch(self) -> None:
        """Compare all documents after the broker was away or lost data: it may have lost marks."""
        epoch = self._queue.epoch()
        if epoch is None:
            self._broker_was_away = True
            return
        if self._broker_was_away or self._epoch not in (None, epoch):
            log.warning("broker_came_back", lost_data=self._epoch not in (None, epoch))
            self._report.republish()
            self._dispatcher.republish()
            self._request(self._agents, "the broker came back")
        self._broker_was_away = False
        self._epoch = epoch

    def _request(self, agents: Iterable[str], reason: str, *, delay_seconds: float = 0.0, urgent: bool = False) -> None:
        self._schedule.request(agents, reason, now=time.monotonic(), delay_seconds=delay_seconds, urgent=urgent)
        self._wake.set()


def read_inbox(inbox: EventInbox, handle: Callable[[Event], None], stop: threading.Event, pulse: Pulse) -> None:
    """Call `handle` with every event until `stop`. Go on after an absent broker and after events that fail."""
    while not stop.is_set():
        began = time.monotonic()
        try:
            event = inbox.take(TAKE_SECONDS)
            if event is not None:
                try:
                    with pulse.at(event.kind):
                        handle(event)
                finally:
                    inbox.answer(event)
                continue
        except Exception:
            log.exception("event_unreadable")
        # An absent broker answers at once: do not ask it in a tight loop.
        stop.wait(TAKE_SECONDS - (time.monotonic() - began))


def _is_barred(files: AgentFiles, key: DocumentKey) -> bool:
    """Return True for a path that must not be opened: a link below a folder, or no regular file."""
    try:
        return files.stat(key) is None and os.path.lexists(files.path_of(key))
    except RecalldError:
        return False  # the worker that reads it records the reason
