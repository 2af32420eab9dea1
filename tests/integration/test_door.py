"""The door of a fleet: content that machines send by HTTP, with access tokens, into a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from memory.documents.agent_files import AgentFiles
from memory.store.postgres.administration import Administration
from memory.store.postgres.arrivals import running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import FleetDirectory
from memory.transcripts.lines import packed
from producers.door import Door
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.ingest import MOST_CONTENT_BYTES, MOST_DOCUMENTS, MOST_PART_BYTES
from schemas.settings import Settings
from tests.postgres_server import PostgresServer, Urls
from tests.secret_samples import PASSWORD
from tests.waiting import wait_until

LAPTOP, DESKTOP = "laptop0123456789", "desktop012345678"


class Queue:
    """A queue that notes what is marked; it may be away."""

    def __init__(self) -> None:
        self.marked: list[tuple[str, str, Lane]] = []
        self.is_away = False

    def mark_changed(self, agent: str, documents: Sequence[DocumentKey], *, lane: Lane) -> None:
        if self.is_away:
            raise BrokerUnavailable("away")
        self.marked += [(agent, key.path, lane) for key in documents]

    def request_vectors(self, agent: str) -> None: ...

    def request_completion(self, agent: str) -> None: ...


class Sender:
    """A machine with a token, and a door."""

    def __init__(self, url: str, token: str, *, machine: str = LAPTOP) -> None:
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        self.machine = machine

    def post(self, call: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/ingest/{call}", json={"machine": self.machine, **body})

    def part(self, content: bytes, *, path: str = "MEMORY.md", **parameters: Any) -> httpx.Response:
        """Send a part; what is not given is right for a whole note."""
        headers = {"Content-Type": "application/zstd", **parameters.pop("headers", {})}
        frame = parameters.pop("frame", packed(content))
        parameters = {"source": "memory", "path": path, "machine": self.machine, "before": "", **parameters}
        parameters.setdefault("digest", running_digest(parameters["before"], content))
        return self.client.post("/v1/ingest/part", params=parameters, content=frame, headers=headers)


@pytest.fixture
def settings(settings: Settings, fleet_urls: Urls) -> Settings:
    store = {"url": fleet_urls.writer}
    return Settings.model_validate({"home": settings.home, "provider": "none", "store": store, "ingest": {"port": 0}})


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def door(settings: Settings, queue: Queue, fleet: Administration) -> Iterator[Door]:
    with Door(settings, queue) as door:
        yield door


@pytest.fixture
def sender(door: Door) -> Iterator[Callable[..., Sender]]:
    """Make a sender with a token."""
    with ExitStack() as clients:

        def sender(token: str, **options: str) -> Sender:
            sender = Sender(door.url, token, **options)
            clients.enter_context(sender.client)
            return sender

        yield sender


@pytest.fixture
def laptop(sender: Callable[..., Sender], fleet: Administration) -> Sender:
    return sender(fleet.add_token("acme", "laptop", rights=["ingest"], agents=["anna"]))


def note(settings: Settings, agent: str = "acme/anna", path: str = "MEMORY.md") -> str:
    files = AgentFiles.of(settings, FleetDirectory.of(settings).agent(agent))
    return files.read(DocumentKey("memory", path)).text


def test_a_note_is_taken_queued_and_compared(laptop: Sender, queue: Queue, settings: Settings):
    answer = laptop.part(b"# Facts\n")
    assert (answer.status_code, answer.json()) == (200, {"size": 8, "digest": running_digest("", b"# Facts\n")})
    assert note(settings) == "# Facts\n"
    assert queue.marked == [("acme/anna", "MEMORY.md", Lane.LIVE)]
    names = [{"source": "memory", "path": path} for path in ("memory/none.md", "MEMORY.md")]
    assert laptop.post("compare", documents=names).json()["documents"] == [
        {**names[0], "size": 0, "digest": ""},
        {**names[1], **answer.json()},
    ]
    assert laptop.post("delete", documents=names[1:]).json() == {"documents": 1}
    assert laptop.post("compare", documents=names[1:]).json()["documents"] == [{**names[1], "size": 0, "digest": ""}]


def test_a_transcript_grows_under_the_name_of_its_machine(laptop: Sender, queue: Queue):
    talk = {"source": "sessions", "path": "sessions/a.jsonl", "lane": "backfill"}
    first = laptop.part(b'{"a": 1}\n', **talk).json()
    grown = laptop.part(b'{"b": 2}\n', offset=first["size"], before=first["digest"], **talk)
    assert (grown.status_code, grown.json()["size"]) == (200, 18)
    misplaced = laptop.part(b"{}\n", offset=first["size"], before=first["digest"], **talk)
    assert (misplaced.status_code, misplaced.json()) == (409, grown.json()), "the answer has what is there"
    assert queue.marked == [("acme/anna", f"sessions/{LAPTOP}/a.jsonl", Lane.BACKFILL)] * 2


def test_secrets_that_a_machine_sends_are_masked_once_more(laptop: Sender, settings: Settings):
    laptop.part(f"password: {PASSWORD}\n".encode())
    assert note(settings) == "password: [redacted:password]\n"
    # What was sent still tells where it goes on.
    assert laptop.post("compare", documents=[{"source": "memory", "path": "MEMORY.md"}]).json()["documents"][0][
        "size"
    ] == len(f"password: {PASSWORD}\n")


def test_without_a_broker_content_is_taken_all_the_same(laptop: Sender, queue: Queue, settings: Settings):
    queue.is_away = True
    assert laptop.part(b"kept\n").status_code == 200
    assert note(settings) == "kept\n"


def test_an_event_is_taken_once_and_with_one_content(laptop: Sender):
    event = {"headers": {"Idempotency-Key": "e1"}}
    assert [laptop.part(b"one\n", **event).status_code for _ in range(2)] == [200, 200]
    assert laptop.part(b"two\n", **event).status_code == 409


BAD_PATHS = [
    "../x.md",
    "/etc/x.md",
    "a//x.md",
    "a/./x.md",
    "x.md/",
    "a\0.md",
    "a\nb.md",
    "x" * 1030 + ".md",
    "x.txt",
    "",
]


@pytest.mark.parametrize("path", BAD_PATHS, ids=range(len(BAD_PATHS)))
def test_a_path_that_leads_out_is_refused(laptop: Sender, path: str):
    answer = laptop.part(b"x\n", path=path)
    assert answer.status_code == 422, path
    assert len(answer.json()["error"]) > 20
    assert laptop.post("delete", documents=[{"source": "memory", "path": path}]).status_code == 422


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"digest": "0" * 32}, 422),
        ({"digest": "x"}, 422),
        ({"offset": 5}, 409),
        ({"offset": -1}, 422),
        ({"source": "secrets"}, 422),
        ({"frame": b"no frame"}, 422),
        ({"frame": packed(b"x\n")[:-3]}, 422),
        ({"frame": b"x" * (MOST_PART_BYTES + 1)}, 413),
        ({"frame": b"x" * 65_000_000}, 413),
        ({"frame": packed(b"\n" * (MOST_CONTENT_BYTES + 1))}, 422),
        ({"machine": "../../etc"}, 422),
    ],
    ids=lambda change: str(change)[:24],
)
def test_what_cannot_be_a_part_is_refused_in_a_sentence(laptop: Sender, change: dict[str, Any], status: int):
    answer = laptop.part(b"x\n", **change)
    assert answer.status_code == status
    assert answer.json() if status == 409 else len(answer.json()["error"]) > 20
    assert laptop.part(b"x\n").status_code == 200, "the next one is taken"


def test_more_documents_than_a_request_may_name_are_refused(laptop: Sender):
    names = [{"source": "memory", "path": f"{number}.md"} for number in range(MOST_DOCUMENTS + 1)]
    assert laptop.post("compare", documents=names).status_code == 422
    assert laptop.post("compare", documents=names[:-1]).status_code == 200


def test_a_token_opens_its_agents_on_its_machine_alone(
    sender: Callable[..., Sender], laptop: Sender, fleet: Administration
):
    assert laptop.part(b"x\n", agent="anna").status_code == 200
    refused = {agent: laptop.part(b"x\n", agent=agent) for agent in ("bob", "eve", "umbrella/eve", "none")}
    assert {answer.status_code for answer in refused.values()} == {404}
    assert len({answer.content for answer in refused.values()}) == 1
    token = laptop.client.headers["Authorization"].removeprefix("Bearer ")
    assert sender(token, machine=DESKTOP).part(b"x\n").status_code == 403
    [listed] = fleet.tokens("acme")
    assert (listed["machine"], listed["refusedMachines"]) == (LAPTOP, [DESKTOP])
    reading = sender(fleet.add_token("acme", "reading", rights=["search"], agents=["anna"]))
    assert reading.part(b"x\n").status_code == 403
    assert sender("-").part(b"x\n").status_code == 401
    assert sender("rcl_unknown").part(b"x\n").status_code == 401


def test_a_token_with_the_right_to_administer_adds_its_agent(
    sender: Callable[..., Sender], fleet: Administration, settings: Settings
):
    setup = sender(fleet.add_token("acme", "setup", rights=["ingest", "admin"], agents=[]))
    assert setup.part(b"of carl\n", agent="carl").status_code == 200
    assert note(settings, "acme/carl") == "of carl\n"
    assert setup.part(b"x\n", agent="no/name").status_code in (404, 422)


def test_a_store_that_is_away_is_said_and_the_next_request_succeeds(
    settings: Settings, queue: Queue, own_server: PostgresServer
):
    urls = own_server.urls()
    fleet = Administration(Database(urls.writer), actor="root")
    fleet.add_tenant("acme")
    token = fleet.add_token("acme", "laptop", rights=["ingest"], agents=["anna"])
    store = settings.store.model_copy(update={"url": SecretStr(urls.writer)})
    with Door(settings.model_copy(update={"store": store}), queue) as door:
        laptop = Sender(door.url, token)
        with laptop.client:
            wait_until(lambda: laptop.client.get("/readyz").status_code == 200)
            own_server.kill()
            answer = laptop.part(b"x\n")
            assert (answer.status_code, "store" in answer.json()["error"]) == (503, True)
            assert laptop.client.get("/readyz").status_code == 503
            assert laptop.client.get("/healthz").status_code == 200
            own_server.start()
            wait_until(lambda: laptop.part(b"x\n").status_code == 200)


def test_beyond_this_machine_it_wants_tls(settings: Settings, queue: Queue):
    ingest = settings.ingest.model_copy(update={"host": "0.0.0.0"})
    with pytest.raises(UserError, match="TLS"):
        Door(settings.model_copy(update={"ingest": ingest}), queue)
    with pytest.raises(UserError, match=r"store\.url"):
        Door(Settings(home=settings.home), queue)
