"""The moments at which a process dies in a test, by name, and the folder through which a test says so.

Nothing in recalld knows of them: `tests/chaos/plugin` wraps the functions in processes that a test starts.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from memory.http.whole_files import write_whole

#: What a test does so that a process comes by.
Deed = Literal["note", "transcript", "compaction", "event", "rebuild", "search", "up"]

PLUGIN = Path(__file__).with_name("plugin")


@dataclass(frozen=True, slots=True)
class KillPoint:
    """`moment` the function (`module:name`) that a `process` (its command) runs; the `victim` dies.

    `when` names which calls count, see the plugin.
    """

    name: str
    process: Literal["watch", "work", "serve", "rebuild", "index"]
    moment: Literal["before", "after"]
    function: str
    deed: Deed
    when: str = ""
    victim: Literal["self", "broker"] = "self"


_KEEP = "memory.embedding.cache:EmbeddingCache.put_many"
_WRITE = "memory.store.sqlite.writer:SqliteStore.write"
_FLUSH = "memory.store.sqlite.transaction:WriteTransaction.flush"
_WRITE_TRANSCRIPT = "memory.store.sqlite.transaction:WriteTransaction._put"
_POINT = "memory.index.file_generation_writer:FileGenerationWriter._point"
_MARK = "workers.queue.pending:PendingSet.mark"
_FINISH = "workers.queue.pending:PendingSet.finish"

#: Those that the short form takes come first.
KILL_POINTS = (
    KillPoint("after embedding", "work", "after", _KEEP, "note"),
    KillPoint("inside the transaction", "work", "after", _FLUSH, "note"),
    KillPoint("between commit and acknowledge", "work", "after", _WRITE, "note"),
    KillPoint("during compaction, in the transaction", "work", "after", _WRITE_TRANSCRIPT, "compaction", "shorter"),
    KillPoint("generation switch, pointed", "work", "after", _POINT, "rebuild", "CURRENT"),
    KillPoint("lost mark", "watch", "before", "workers.queue.job_queue:BrokerJobQueue.mark_changed", "note"),
    KillPoint("lost message", "watch", "after", _MARK, "note"),
    KillPoint("in a search", "serve", "after", "memory.store.sqlite.reader:SqliteReader.search_text", "search"),
    # The long form takes these as well.
    KillPoint("before commit", "work", "before", _WRITE, "note"),
    KillPoint("embedded and not kept", "work", "before", _KEEP, "note"),
    KillPoint(
        "all written, not committed",
        "work",
        "after",
        "memory.store.sqlite.transaction:WriteTransaction.finish",
        "transcript",
    ),
    KillPoint("documents taken", "work", "after", "workers.queue.pending:PendingSet.begin", "note"),
    KillPoint("mark over, message not acknowledged", "work", "after", _FINISH, "note"),
    KillPoint("during compaction, heard of", "watch", "before", "producers.dispatcher:Dispatcher.force", "compaction"),
    KillPoint("during compaction, committed", "work", "before", _FINISH, "compaction"),
    KillPoint(
        "generation made, not pointed to",
        "rebuild",
        "after",
        "memory.index.file_generation_writer:FileGenerationWriter._create",
        "rebuild",
    ),
    KillPoint("generation switch, checked", "work", "before", _POINT, "rebuild", "CURRENT"),
    KillPoint(
        "generation switch, done",
        "work",
        "after",
        "memory.index.generation_writer:GenerationWriter.complete",
        "rebuild",
    ),
    KillPoint("event taken from the inbox", "watch", "before", "producers.run:EventRouter.handle", "event"),
    KillPoint("in a comparison", "watch", "after", "memory.documents.agent_files:AgentFiles.scan", "event"),
    KillPoint("broker, lost mark", "watch", "before", _MARK, "note", victim="broker"),
    KillPoint("broker, lost message", "watch", "after", _MARK, "note", victim="broker"),
    KillPoint("broker, inside the transaction", "work", "after", _FLUSH, "note", victim="broker"),
    KillPoint("broker, between commit and acknowledge", "work", "after", _WRITE, "note", victim="broker"),
    KillPoint("as all start", "work", "before", "workers.run:_start_worker", "up"),
    KillPoint("broker, generation switch", "work", "after", _POINT, "rebuild", "CURRENT", victim="broker"),
)


class Plan:
    """The folder that the plugin reads: which points there are, who is to die, and who did."""

    def __init__(
        self, folder: Path, points: Iterable[KillPoint], *, constants: Mapping[str, float] | None = None
    ) -> None:
        self.folder = folder
        self.hits = Counter[str]()
        for name in ("armed", "hits"):
            (folder / name).mkdir(parents=True)
        described = [
            {**asdict(point), "module": module, "function": function}
            for point in points
            for module, _, function in [point.function.partition(":")]
        ]
        plan = {"points": described, "constants": dict(constants or {})}
        (folder / "plan.json").write_text(json.dumps(plan), "utf-8")

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that follows the plan."""
        before = os.environ.get("PYTHONPATH")
        return {
            "CHAOS_PLAN": str(self.folder),
            "PYTHONPATH": os.pathsep.join([str(PLUGIN), *([before] if before else [])]),
        }

    def arm(self, point: KillPoint, *, victim: int | None = None) -> None:
        """Let the next process that passes the point die there, or let `victim` die then."""
        write_whole(self.folder / "armed" / point.name, str(victim or "").encode(), synced=False)

    def taken(self, point: KillPoint) -> int | None:
        """Return the process that passed the point since it was armed; None without one."""
        for hit in (self.folder / "hits").glob(f"{point.name}.*"):
            pid = int(hit.suffix[1:])
            hit.unlink()
            self.hits[point.name] += 1
            return pid
        return None

    def set_clock(self, seconds: float) -> None:
        """Let the clock of all processes be wrong by so much."""
        write_whole(self.folder / "clock", f"{seconds}".encode(), synced=False)
