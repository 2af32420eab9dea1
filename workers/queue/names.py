"""Names that every process of one home agrees on: queues, actors, keys."""

from __future__ import annotations

from datetime import date

from schemas.documents import Lane

#: Queue of the jobs that give chunks their vectors.
VECTORS_QUEUE = "vectors"
#: All queues, in the order of their importance.
QUEUES = (Lane.LIVE.value, Lane.BACKFILL.value, VECTORS_QUEUE)

INDEX_PENDING = "index_pending"
EMBED_PENDING = "embed_pending"
COMPLETE_GENERATION = "complete_generation"

#: Parts that workers report troubles of: their SQLite has no FTS5, or vectors cannot be had; a new generation has no
#: space; the index is left to processes that read their settings later; a round of clearing away, or of maintenance,
#: failed.
NO_KEYWORDS = "keywords"
NO_VECTORS = "vectors"
NO_SPACE = "disk space"
OLDER_SETTINGS = "older settings"
HOUSEKEEPING = "housekeeping"
MAINTENANCE = "maintenance"


def account_key(account: str) -> str:
    """Hash: what is known about a provider's account. Outside every namespace: all homes share the account's limits."""
    return f"recalld:accounts:{account}"


class Keys:
    """The broker's keys of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.prefix = f"recalld:{namespace}"
        self.dramatiq = f"{self.prefix}:dramatiq"
        #: Dramatiq's sorted set: worker -> Unix time (milliseconds) of its last sign of life.
        self.heartbeats = f"{self.dramatiq}:__heartbeats__"
        self.agents = f"{self.prefix}:agents"
        self.inbox = f"{self.prefix}:inbox"
        self.epoch = f"{self.prefix}:epoch"
        self.sweeper = f"{self.prefix}:sweeper"
        #: String: the job that tries a document that was there when a worker died.
        self.suspects = f"{self.prefix}:suspects"
        #: String: which home's workers take from the queues (`workers.queue.home_lock`).
        self.home = f"{self.prefix}:home"
        #: Hash: JSON of a metric's name and labels' values -> how many, counted by all processes together.
        self.counters = f"{self.prefix}:counters"
        #: Hash: agent -> number of commits to its index; the same when its figures were counted, and these.
        self.commits = f"{self.prefix}:commits"
        self.figures = f"{self.prefix}:figures"
        #: Sorted set: owner of claims -> Unix time until which it is taken to be alive.
        self.claimants = f"{self.prefix}:claimants"

        #: Hash: process -> JSON of its sign of life.
        self.processes = f"{self.prefix}:processes"
        #: Sorted set: process -> Unix time (the server's) at which it was last heard of.
        self.heard = f"{self.prefix}:heard"
        #: String: Unix time (the server's) at which something was last finished.
        self.moved = f"{self.prefix}:moved"

    def sequence(self, agent: str) -> str:
        """Hash: document -> "sequence number|lane" of its latest mark."""
        return f"{self.prefix}:sequence:{agent}"

    def since(self, agent: str) -> str:
        """Sorted set: document -> Unix time of the oldest change that is not committed."""
        return f"{self.prefix}:since:{agent}"

    def waiting(self, agent: str, lane: str) -> str:
        """Sorted set: document -> order, of the documents that no job has taken."""
        return f"{self.prefix}:waiting:{agent}:{lane}"

    def running(self, agent: str) -> str:
        """Hash: document -> "job|sequence number" of the documents that a job has taken."""
        return f"{self.prefix}:running:{agent}"

    def traces(self, agent: str) -> str:
        """Hash: document -> trace of its latest event, where processes trace."""
        return f"{self.prefix}:traces:{agent}"

    def deaths(self, agent: str) -> str:
        """Hash: document -> at how many deaths of a worker it was there."""
        return f"{self.prefix}:deaths:{agent}"

    def given_up(self, agent: str) -> str:
        """Hash: document that killed workers -> what it looked like when it was given up."""
        return f"{self.prefix}:given-up:{agent}"

    def embedding(self, agent: str) -> str:
        """Hash: job -> JSON of the round of embedding that it is at."""
        return f"{self.prefix}:embedding:{agent}"

    def queued(self, actor: str, agent: str, lane: str) -> str:
        """String: set while a message of this actor for this agent waits in a queue."""
        return f"{self.prefix}:queued:{actor}:{agent}:{lane}"

    def live_job(self, agent: str) -> str:
        """Hash: "job" that works on this agent's live documents, and "again" once another one came for them."""
        return f"{self.prefix}:live-job:{agent}"

    def retrying(self, actor: str, agent: str, lane: str) -> str:
        """String: the job of this kind that will be delivered again after a pause."""
        return f"{self.prefix}:retrying:{actor}:{agent}:{lane}"

    def progress(self, agent: str) -> str:
        """Hash: rate and time of the vectors that came in."""
        return f"{self.prefix}:progress:{agent}"

    def troubles(self, agent: str) -> str:
        """Hash: part -> JSON of its trouble; agent "*" for all."""
        return f"{self.prefix}:troubles:{agent}"

    def freshness(self) -> str:
        """Hash: histogram buckets of the time from event to searchable."""
        return f"{self.prefix}:freshness"

    def usage(self, agent: str, day: date | None) -> str:
        """Hash: "number|provider|model" -> how many, on one day (UTC) or ever; agent "*" for all."""
        return f"{self.prefix}:usage:{day.isoformat() if day else 'ever'}:{agent}"

    def claims(self, scope: str) -> str:
        """Hash: text hash -> owner of those who share a cache and want the same vectors."""
        return f"{self.prefix}:claims:{scope}"

    def queue(self, queue: str) -> str:
        """Dramatiq's list of the messages of a queue that no worker has taken."""
        return f"{self.dramatiq}:{queue}"

    def messages(self, queue: str) -> str:
        """Dramatiq's hash of a queue's messages: waiting and not yet acknowledged."""
        return f"{self.dramatiq}:{queue}.msgs"

    def taken(self, worker: str, queue: str) -> str:
        """Dramatiq's set of the messages that a worker took from a queue and did not acknowledge."""
        return f"{self.dramatiq}:__acks__.{worker}.{queue}"

    def delayed_messages(self, queue: str) -> str:
        """Dramatiq's hash of a queue's delayed messages."""
        return f"{self.dramatiq}:{queue}.DQ.msgs"
