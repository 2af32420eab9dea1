"""Documents of a machine on their way to a real door: growth, repetition, refusals, and a ledger that is lost."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memory.store.postgres.administration import Administration
from memory.store.postgres.connection import Database
from memory.store.postgres.documents import FleetDocuments
from memory.transcripts.lines import unpacked
from producers.door import MOST_PENDING, Door
from producers.remote.door_client import DoorClient, SenderRefused
from producers.remote.queue import RemoteQueue
from schemas.agents import Scope
from schemas.conditions import ConditionCode
from schemas.documents import DocumentKey, Lane
from schemas.errors import BrokerUnavailable, UserError
from schemas.settings import Settings
from tests.daemon import recalld
from tests.postgres_server import Urls
from tests.recording import RecordingConditions, RecordingQueue
from tests.secret_samples import PASSWORD

MACHINE = "laptop0123456789"
TALK = DocumentKey("sessions", "sessions/a.jsonl")


class LossyClient(DoorClient):
    """A client that notes the parts it sends. With `loses` it does not see the door's answers to them."""

    loses = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sent: list[bytes] = []

    def add(self, *arguments: Any, **options: Any) -> None:
        content = unpacked(arguments[2].frame, most=10**7)
        assert content is not None
        self.sent.append(content)
        super().add(*arguments, **options)
        if self.loses:
            raise BrokerUnavailable("the answer is lost")


class Machine:
    """A machine with one agent, and the documents that the fleet has of it."""

    def __init__(self, root: Path, urls: Urls, door: Door, token: str) -> None:
        self.root, self.door, self.token = root, door, token
        self.conditions = RecordingConditions()
        self._documents = FleetDocuments(Database(urls.reader), Scope("acme", "anna"))
        for folder in ("notes/memory", "talks"):
            (root / folder).mkdir(parents=True)
        self.queue = self.begin()

    def settings(self, **more: Any) -> Settings:
        agent = {"id": "main", "workspace": self.root / "notes", "sessions": [str(self.root / "talks")]}
        fleet = {"url": self.door.url, "token": self.token}
        return Settings.model_validate({"home": self.root / "home", "agents": [{**agent, **more}], "fleet": fleet})

    def begin(self, **more: Any) -> RemoteQueue:
        """Start anew, as after a crash."""
        settings = self.settings(**more)
        self.client = LossyClient(settings, MACHINE)
        self.queue = RemoteQueue(settings, self.client, self.conditions)
        return self.queue

    def end(self) -> None:
        self.queue.close()

    def write(self, text: str, *, at: str = "talks/a.jsonl", mode: str = "a") -> None:
        with (self.root / at).open(mode) as file:
            file.write(text)

    def send(self, *keys: DocumentKey, lane: Lane = Lane.LIVE) -> int:
        """Send documents, and return the number of parts."""
        before = len(self.client.sent)
        self.queue.mark_changed("main", keys or [TALK], lane=lane)
        return len(self.client.sent) - before

    def arrived(self, key: DocumentKey = TALK) -> tuple[int, str] | None:
        """Return version and content of a document in the fleet."""
        path = key.path.replace("sessions/", f"sessions/{MACHINE}/", 1) if key.is_transcript else key.path
        if (held := self._documents.held(DocumentKey(key.source, path))) is None:
            return None
        blocks = [unpacked(frame, most=size) for frame, size, _ in self._documents.content(held)]
        return held.stat.inode, b"".join(block or b"" for block in blocks).decode()


def line(text: str) -> str:
    return json.dumps({"role": "user", "content": text}) + "\n"


def note(name: str) -> DocumentKey:
    return DocumentKey("memory", f"memory/{name}")


@pytest.fixture
def pending() -> dict[str, int]:
    return {}


@pytest.fixture
def machine(tmp_path: Path, fleet_urls: Urls, fleet: Administration, pending: dict[str, int]) -> Iterator[Machine]:
    values = {"home": tmp_path / "door", "store": {"url": fleet_urls.writer}, "ingest": {"port": 0}}
    token = fleet.add_token("acme", "laptop", rights=["ingest"], agents=["anna"])
    with Door(Settings.model_validate(values), RecordingQueue(), pending=pending.get) as door:
        machine = Machine(tmp_path, fleet_urls, door, token)
        yield machine
        machine.end()


def test_of_a_transcript_that_grows_the_new_lines_alone_are_sent(machine: Machine):
    machine.write(line("one") + line(f"password = {PASSWORD}"))
    assert machine.send() == 1
    version, content = machine.arrived() or (0, "")
    assert PASSWORD not in content
    assert not any(PASSWORD.encode() in part for part in machine.client.sent), "the machine redacts by itself"
    assert machine.send() == 0
    machine.write(line("two") + '{"half of')
    machine.send()
    assert machine.arrived() == (version, content + line("two"))
    machine.write(' a line": 1}')
    assert machine.send() == 1, "a last line without an end that is JSON"
    machine.write("\n" + line("three"))
    machine.send()
    assert machine.arrived() == (version, content + line("two") + '{"half of a line": 1}\n' + line("three"))


def test_a_transcript_that_was_rewritten_is_a_new_version(machine: Machine):
    machine.write(line("one") + line("two"))
    machine.send()
    machine.write(line("other") + line("two") + line("three"), mode="w")
    machine.send()
    assert machine.arrived() == (2, line("other") + line("two") + line("three"))
    machine.write("", mode="w")
    machine.send()
    machine.write(line("anew"))
    machine.send()
    assert machine.arrived() == (3, line("anew"))


@pytest.mark.parametrize("grows", [False, True])
def test_an_answer_that_was_lost_costs_no_second_copy(machine: Machine, grows: bool):
    machine.write(line("one"))
    machine.send()
    machine.write(line("two"))
    machine.client.loses = True
    with pytest.raises(BrokerUnavailable):
        machine.send()
    machine.end()
    machine.begin()
    machine.write(line("three") * grows)
    machine.send()
    assert machine.arrived() == (1, line("one") + line("two") + line("three") * grows)


def test_without_its_ledger_a_machine_sends_what_the_door_lacks(machine: Machine):
    machine.write("# A\n", at="notes/memory/a.md")
    machine.write(line("one") * 3)
    assert machine.send(note("a.md"), TALK) == 2
    machine.end()
    shutil.rmtree(machine.root / "home" / "sent")
    machine.begin()
    machine.write("# B\n", at="notes/memory/b.md")
    machine.write(line("two"))
    assert machine.send(note("a.md"), note("b.md"), TALK) == 2
    assert machine.arrived() == (1, line("one") * 3 + line("two"))


def test_lines_that_no_part_can_hold_arrive_whole(machine: Machine):
    letters = random.Random(38).choices("abcdefghijklmnopqrstuvwxyzäöü中文 ", k=2_500_000)
    machine.write(text := line("before") + json.dumps({"content": "".join(letters)}, ensure_ascii=False) + "\n")
    assert machine.send() > 2
    machine.write(line("after"))
    machine.send()
    assert machine.arrived() == (1, text + line("after"))


def test_a_document_that_is_never_taken_holds_up_no_other(machine: Machine):
    bad = note("x" * 200 + "/" + "/".join(["y" * 200] * 5) + ".md")
    for key in (bad, note("good.md")):
        (machine.root / "notes" / key.path).parent.mkdir(parents=True, exist_ok=True)
        machine.write("# Text\n", at=f"notes/{key.path}")
    machine.send(bad, note("good.md"), note("never.md"))
    assert machine.arrived(note("good.md")) == (1, "# Text\n")
    with closing(machine.queue.indexed(machine.settings().agents[0])) as ledger:
        assert [letter.path for letter in ledger.dead_letters()] == [bad.path]


def test_gone_notes_are_removed_and_transcripts_if_the_settings_say_so(machine: Machine):
    machine.write("# A\n", at="notes/memory/a.md")
    machine.write(line("one"))
    machine.send(note("a.md"), TALK)
    (machine.root / "notes/memory/a.md").unlink()
    (machine.root / "talks/a.jsonl").unlink()
    machine.send(note("a.md"), TALK)
    assert machine.arrived(note("a.md")) is None
    assert machine.arrived() == (1, line("one"))
    machine.end()
    machine.begin(sync={"sessions": {"forget_deleted": True}})
    machine.send()
    assert machine.arrived() is None


def test_a_refused_machine_has_a_condition_until_it_is_admitted(machine: Machine):
    machine.write("# A\n", at="notes/memory/a.md")
    token, machine.token = machine.token, "rcl_wrong"
    machine.end()
    machine.begin()
    with pytest.raises(SenderRefused, match="401"):
        machine.send(note("a.md"))
    assert (ConditionCode.DOOR_REFUSES, "main") in machine.conditions.open
    machine.token = token
    machine.end()
    machine.begin()
    assert machine.send(note("a.md")) == 1
    assert machine.conditions.open == {}


def test_a_full_fleet_is_not_asked_again_before_its_time(machine: Machine, pending: dict[str, int]):
    machine.write("# A\n", at="notes/memory/a.md")
    pending["acme/anna"] = MOST_PENDING
    with pytest.raises(BrokerUnavailable, match="takes nothing now") as refused:
        machine.send(note("a.md"))
    assert refused.value.retry_after == 2
    pending.clear()
    with pytest.raises(BrokerUnavailable, match="asked again in"):
        machine.send(note("a.md"))


@pytest.mark.parametrize(
    ("url", "token", "reason"),
    [
        ("http://fleet.example.com", "rcl_x", "without TLS"),
        ("fleet.example.com", "rcl_x", "is a URL"),
        ("https://user:secret@fleet.example.com", "rcl_x", "without a user"),
        ("https://fleet.example.com", None, "RECALLD_TOKEN"),
    ],
)
def test_memory_and_tokens_go_to_no_unsafe_address(tmp_path: Path, url: str, token: str | None, reason: str):
    settings = Settings.model_validate({"home": tmp_path, "fleet": {"url": url, "token": token}})
    with pytest.raises(UserError, match=reason):
        DoorClient(settings, MACHINE)


@pytest.mark.long
def test_a_backfill_tells_its_size_then_sends_what_is_missing(machine: Machine, tmp_path: Path):
    (old := tmp_path / "old").mkdir()
    for name in "abc":
        (old / f"{name}.jsonl").write_text(line(name) * 100)
    config = tmp_path / "recalld.toml"
    config.write_text(f'[[agents]]\nid = "main"\nworkspace = "{tmp_path / "notes"}"\n')
    home, environment = tmp_path / "other", {"RECALLD_TOKEN": machine.token, "RECALLD_CONFIG": str(config)}

    def backfill(*options: str) -> dict[str, Any]:
        arguments = ("backfill", str(old), "--remote", machine.door.url, "--json", *options)
        run = recalld(*arguments, home=home, environment=environment)
        assert run.returncode == 0, run.stderr
        answer: dict[str, Any] = json.loads(run.stdout)
        return answer

    assert backfill("--dry-run")["transcripts"] == 3
    assert backfill("--dry-run", "--exclude", "b.jsonl")["leftOutBy"] == {"exclusion": 1}
    assert (backfill()["transcripts"], backfill()["transcripts"]) == (3, 0)
    assert not (home / "broker").exists()
