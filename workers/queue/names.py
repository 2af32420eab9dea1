"""Names shared by all processes of a home: queues, actors, keys."""

from __future__ import annotations

from datetime import date

from schemas.documents import Lane

#: Queue of the jobs that give chunks their vectors.
VECTORS_QUEUE = "vectors"
#: All queues, in the order of their importance.
QUEUES = (Lane.LIVE.value, Lane.BACKFILL.value, VECTORS_QUEUE)

#: Option of a message: the trace that its job continues (W3C Trace Context).
TRACEPARENT = "traceparent"

#: Option of a message: version of its schema, 1 without it. A change that earlier workers would not understand raises
#: the number.
SCHEMA, JOB_SCHEMA = "schema", 1

INDEX_PENDING = "index_pending"
EMBED_PENDING = "embed_pending"
COMPLETE_GENERATION = "complete_generation"
POLL_BATCH_JOBS = "poll_batch_jobs"


def account_key(account: str) -> str:
    """Hash: state of a provider's account. Outside of every namespace: all homes share the account's limits."""
    return f"recalld:accounts:{account}"


class Keys:
    """Keys of one namespace in the broker."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"recalld:{namespace}"
        self.dramatiq = f"{self.prefix}:dramatiq"
        #: Dramatiq's sorted set: worker -> Unix time (milliseconds) of its last heartbeat.
        self.heartbeats = f"{self.dramatiq}:__heartbeats__"
        #: Set: agents that may have marks.
        self.agents = f"{self.prefix}:agents"
        #: Set: agents that have, or had, conditions.
        self.troubled = f"{self.prefix}:troubled"
        self.inbox = f"{self.prefix}:inbox"
        #: Set: agents with changes that producers have not queued yet.
        self.held_back = f"{self.prefix}:held-back"
        self.epoch = f"{self.prefix}:epoch"
        self.sweeper = f"{self.prefix}:sweeper"
        #: String: the job that tries alone what was there at several crashes.
        self.alone = f"{self.prefix}:suspects"
        #: String: identity of the home whose workers take from the queues (`workers.queue.queue_tenancy`).
        self.home = f"{self.prefix}:home"
        #: Sorted set: job on live documents -> Unix time of its begin (of its worker's clock).
        self.live_jobs = f"{self.prefix}:live-jobs"
        #: Hash: JSON of a metric's name and labels' values -> how many, counted by all processes together.
        self.counters = f"{self.prefix}:counters"
        #: Hash: process -> JSON of its heartbeat.
        self.processes = f"{self.prefix}:processes"
        #: Sorted set: process -> Unix time (the server's) of its last heartbeat.
        self.heard = f"{self.prefix}:heard"
        #: List: "Unix time limit" of the last workers that ended for want of memory.
        self.out_of_memory = f"{self.prefix}:out-of-memory"
        #: String: expires `pending.MOVED_KEPT_SECONDS` after the last finished work.
        self.moved = f"{self.prefix}:moved"

    def since(self, agent: str) -> str:
        """Sorted set: document -> Unix time of the oldest change that is not committed."""
        return f"{self.prefix}:since:{agent}"

    def waiting(self, agent: str, lane: str) -> str:
        """Sorted set: document -> order, of the documents that no job has taken."""
        return f"{self.prefix}:waiting:{agent}:{lane}"

    def running(self, agent: str) -> str:
        """Hash: document -> "job|lane|crashes|lane of a later mark" of the documents that a job has taken."""
        return f"{self.prefix}:running:{agent}"

    def traces(self, agent: str) -> str:
        """Hash: document -> trace of its latest event, where processes trace."""
        return f"{self.prefix}:traces:{agent}"

    def crashes(self, agent: str) -> str:
        """Hash: document or job -> its crashes, or the look of a document that became a dead letter."""
        return f"{self.prefix}:deaths:{agent}"

    def queued(self, actor: str, agent: str, lane: str) -> str:
        """String: set while a message of this actor for this agent waits in a queue. Of live documents also while a job
        works on them: "job:" and its id."""
        return f"{self.prefix}:queued:{actor}:{agent}:{lane}"

    def retrying(self, actor: str, agent: str, lane: str) -> str:
        """String: the job of this kind that is delivered again after a pause."""
        return f"{self.prefix}:retrying:{actor}:{agent}:{lane}"

    def progress(self, agent: str) -> str:
        """Hash: rate and time of new vectors."""
        return f"{self.prefix}:progress:{agent}"

    def conditions(self, agent: str) -> str:
        """Hash: code and subject -> JSON of a condition; agent "*" for all."""
        return f"{self.prefix}:conditions:{agent}"

    def freshness(self) -> str:
        """Hash: histogram buckets of the time from event to searchable."""
        return f"{self.prefix}:freshness"

    def usage(self, agent: str, day: date | None) -> str:
        """Hash: "number|provider|model" -> count, on one day (UTC) or ever; agent "*" for all."""
        return f"{self.prefix}:usage:{day.isoformat() if day else 'ever'}:{agent}"

    def is_day(self, key: str) -> bool:
        """Return True for the usage of one day, which expires."""
        return key.startswith(f"{self.prefix}:usage:") and not key.startswith(f"{self.prefix}:usage:ever:")

    def claim(self, scope: str, text_hash: str) -> str:
        """String: name of the process that embeds a text, among the processes that share a cache."""
        return f"{self.prefix}:claim:{scope}:{text_hash}"

    def queue(self, queue: str) -> str:
        """Dramatiq's list of the queue's messages that no worker has taken."""
        return f"{self.dramatiq}:{queue}"

    def messages(self, queue: str) -> str:
        """Dramatiq's hash of a queue's messages: waiting and not yet acknowledged."""
        return f"{self.dramatiq}:{queue}.msgs"

    def bell(self, queue: str) -> str:
        """List that wakes the queue's consumers."""
        return f"{self.queue(queue)}.bell"

    def turns(self, queue: str, agent: str) -> str:
        """List: the messages of a tenant, the first of which is in the queue; "" for an agent without a tenant."""
        tenant, slash, _ = agent.partition("/")
        return f"{self.queue(queue)}.turns.{tenant}" if slash else ""

    def taken(self, worker: str, queue: str) -> str:
        """Dramatiq's set of the messages that a worker took from a queue and did not acknowledge."""
        return f"{self.dramatiq}:__acks__.{worker}.{queue}"

    def delayed_messages(self, queue: str) -> str:
        """Dramatiq's hash of a queue's delayed messages."""
        return f"{self.dramatiq}:{queue}.DQ.msgs"
