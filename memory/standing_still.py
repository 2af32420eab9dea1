"""Work that gets no further though nothing is reported: what only a look at the times shows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory.status.condition_texts import waiting_chunks
from schemas.ports import EndpointState, Pending, VectorProgress
from schemas.status import IndexState, QueueState, TroubleState

#: A mark may be made by another machine, whose clock differs by less than this.
_CLOCK_SECONDS = 5.0

#: An endpoint that owes an answer for so long while no vector joins the index stands still.
SILENCE_SECONDS = 60.0

#: A build with nothing left in the queue is looked at by the workers every five minutes.
BUILD_SECONDS = 900.0

#: Troubles that say why no vectors come.
_OF_VECTORS = frozenset({"vectors", "embedding", "index"})


def clock_troubles(pending: Pending | None, *, now: float) -> Iterator[TroubleState]:
    """Documents that wait since a time that is still to come: how long they wait nobody can say."""
    if pending is not None and pending.oldest_at is not None and pending.oldest_at - now > _CLOCK_SECONDS:
        ahead = pending.oldest_at - now
        message = (
            f"a document waits since a time that is {ahead:.0f} s in the future: a clock went back, or those of two "
            "machines differ; set them (`timedatectl set-ntp true`)"
        )
        yield TroubleState(part="clock", message=message, since=now)


def silence_troubles(
    endpoint: EndpointState | None, progress: VectorProgress | None, *, provider: str, now: float
) -> Iterator[TroubleState]:
    """An endpoint that leaves requests without an answer; not one that is slow, as long as vectors come in."""
    if endpoint is None or endpoint.since is None:
        return
    still_since = max(endpoint.since, progress.at if progress is not None else 0.0)
    if now - still_since > SILENCE_SECONDS:
        message = (
            f"{endpoint.reason}; keywords work meanwhile, and it is asked again by itself (`recalld doctor --online` "
            "asks it now)"
        )
        yield TroubleState(part=f"provider {provider}", message=message, since=endpoint.since)


def vector_troubles(
    index: IndexState, stuck_since: float | None, told: Sequence[TroubleState], *, now: float
) -> Iterator[TroubleState]:
    """Vectors that wait while none comes in, for a reason that is not among the troubles `told`."""
    if stuck_since is None or any(one.part in _OF_VECTORS or one.part.startswith("provider ") for one in told):
        return
    message = (
        f"{waiting_chunks(index.vectors_pending)}, and none came in for {(now - stuck_since) / 60:.0f} min; "
        "keywords find them meanwhile, and the folder log in the home says what holds it up"
    )
    yield TroubleState(part="waiting vectors", message=message, since=stuck_since)


def build_troubles(index: IndexState, queue: QueueState, *, in_batch_jobs: int, now: float) -> Iterator[TroubleState]:
    """A new generation that nobody builds any more: for as long as it is not whole, the old one answers."""
    build = index.build
    if index.building is None:
        return
    if not queue.reachable:
        message = (
            "a new index is half built, and nothing runs that goes on with it: `recalld up` or `recalld index` does"
        )
        yield TroubleState(part="build", message=message, since=build.last_change_at or now if build else now)
    elif build is not None and build.last_change_at is not None and not queue.pending and not in_batch_jobs:
        still = now - build.last_change_at
        if still > BUILD_SECONDS:
            message = (
                f"the new index has got no further for {still / 60:.0f} min, with {build.files} of {build.of_files} "
                f"documents and {build.vectors_pending} vectors to come; `recalld index` goes on with it, "
                "`recalld rebuild --force` begins anew"
            )
            yield TroubleState(part="build", message=message, since=build.last_change_at)
