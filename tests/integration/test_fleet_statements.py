"""Every SQL statement of a fleet's store, run again with another tenant's setting, with none, and with a defect.

The statements are recorded while the tenant `umbrella` uses the store. A statement keeps umbrella's rows to itself if
other settings get the same answers from a store with these rows as from an empty one.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pytest
from psycopg import errors

import memory.embedding.batch_jobs
import memory.index
import memory.store.postgres
from memory.embedding.batch_jobs.batch_ledger import BatchLedger, batch_jobs_of, sent_in_jobs
from memory.embedding.batch_jobs.ledger_reader import texts_in_jobs
from memory.embedding.cache import EmbeddingCache
from memory.embedding.cache_reader import EmbeddingCacheReader
from memory.embedding.providers.stub import StubProvider
from memory.index.fingerprint import Fingerprint
from memory.index.postgres_generation_writer import OwnerLease, PostgresGenerationWriter
from memory.store.durable_tables import in_postgres
from memory.store.postgres.administration import Administration, bind_machine
from memory.store.postgres.arrivals import ArrivingDocuments, EventReused, Extent, Part, running_digest
from memory.store.postgres.connection import Database
from memory.store.postgres.directory import FleetDirectory, token_hash
from memory.store.postgres.reader import FLAWS, SELECT_WORDLESS
from memory.store.postgres.writer import create_generation
from memory.store.reader import ChunkFilter, SentenceSigns, Span
from memory.store.writer import DocumentDelete, MovedChunk, Store, Unread
from schemas.agents import Scope
from schemas.settings import Settings
from tests.postgres_server import Urls
from tests.storing import TALK, chunk, document, key, piece, position, text_hash, vector

EVE = Scope("umbrella", "eve")
NOTE = key("memory/a.md")

#: Rows that a statement answers with, and their number; or the class of its error.
Outcome: TypeAlias = tuple[int, list[tuple[Any, ...]]] | type[psycopg.Error]

#: Ids of many rows.
WIDE = {"ids": list(range(1, 20)), "files": list(range(1, 20))}

#: Statements about tables with tenants. The owner of all indexes and locks of workers have none.
_GUARDED = re.compile(r"\b(?:FROM|INTO|UPDATE|JOIN) recalld\.(?!leases|schema_steps)")
_PARTED = re.compile(r"\brecalld\.(files|chunks|documents|document_parts|embeddings)\b")


@dataclass(frozen=True)
class Statement:
    """Statement with umbrella's ids."""

    text: str
    values: Any

    def without_tenant(self) -> Statement:
        """Return the same with a defect: no condition on the tenant."""
        return Statement(
            re.sub(r"(?:\b\w+\.)?\btenant = %(\(\w+\))?s", r"%\1s::text IS NOT NULL", self.text), self.values
        )


class Recording:
    """Statements about guarded tables that this process runs, by their texts, with all their values."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values: dict[str, list[Any]] = {}
        execute = psycopg.Cursor.execute

        def recording(cursor: Any, query: Any, values: Any = None, **options: Any) -> Any:
            text = query.decode() if isinstance(query, bytes) else query
            if isinstance(text, str) and _GUARDED.search(text):
                self.values.setdefault(text, []).append(values)
            return execute(cursor, query, values, **options)

        monkeypatch.setattr(psycopg.Cursor, "execute", recording)


def execute(urls: Urls, statement: str) -> None:
    with psycopg.connect(urls.superuser) as connection:
        connection.execute(statement.encode())


def use_everything(settings: Settings, urls: Urls) -> str:
    """Use every part of the store as umbrella, whose rows stay; return the generation that answers."""
    database = Database.of(settings.store)
    fleet = Administration(database, actor="root")
    fleet.add_tenant(EVE.tenant)
    fleet.remove_tenant(EVE.tenant, force=True)
    fleet.add_tenant(EVE.tenant)
    fleet.set_tenant(EVE.tenant, weight=2)
    fleet.add_token(EVE.tenant, "old", rights=["search"])
    fleet.revoke(EVE.tenant, "old")
    token = fleet.add_token(EVE.tenant, "bot", rights=["search", "ingest"], agents=[EVE.agent])
    directory = FleetDirectory.of(settings)
    access = directory.token(token_hash(token))
    assert access is not None
    assert [bind_machine(database, access, machine) for machine in ("laptop", "desktop")] == [True, False]
    assert all((directory.agent(EVE.agent_id), directory.page(EVE.tenant), list(directory.agent_ids())))
    assert (directory.share(EVE.agent_id).weight, directory.budgets(EVE.tenant)) == (2, {EVE.tenant: None})
    assert all((fleet.tenants(), fleet.tokens(EVE.tenant)))
    arrive(ArrivingDocuments(database, EVE))
    use_tables(settings, urls)

    owner = OwnerLease(settings.store)
    writer = PostgresGenerationWriter(settings.store, EVE.agent_id, owner=owner)
    assert owner.owns()
    for name in ("f1", "f2", "f3"):  # the first one is swept, the second is old
        writer.begin(Fingerprint(name, "{}"))
        execute(urls, "UPDATE recalld.generations SET meta = '{\"retired_at\": \"0\"}' WHERE state = 'old'")
        writer.complete(name)
    create_generation(database, EVE, fingerprint="f4", description="{}")
    [store] = writer.open_writer(Fingerprint("f3", "{}"))
    write(store)
    read(store)
    store.set_meta({"name": "another text"})
    assert store.search_text("alpha", 9)  # renews the words
    assert writer.current() == store.name
    owner.close()
    return store.name


def arrive(documents: ArrivingDocuments) -> None:
    part = Part(Extent(), 3, running_digest("", b"one"), b"one", 3, is_last=True)
    documents.add("laptop", NOTE, part)
    documents.remove("laptop", [NOTE])
    first = documents.add("laptop", NOTE, part, event="e1")
    with suppress(EventReused):
        documents.add("desktop", NOTE, part, event="e1")
    documents.add("laptop", NOTE, Part(first, 3, running_digest(first.digest, b"two"), b"two", 3, is_last=True))
    documents.add("laptop", NOTE, Part(first, 3, running_digest(first.digest, b"two"), b"two", 3, is_last=True))
    documents.add("laptop", TALK, part)
    documents.remove("laptop", [TALK])
    assert documents.removed([TALK])
    documents.look_up([NOTE])
    held = documents.held(NOTE)
    assert held is not None
    assert all((documents.all(), list(documents.content(held)), documents.extents("laptop", [NOTE])))


def use_tables(settings: Settings, urls: Urls) -> None:
    """Use the cache of embeddings and the ledger of batch jobs."""
    bounded = settings.model_copy(update={"cache": settings.cache.model_copy(update={"max_entries": 1})})
    cache = EmbeddingCache.of(bounded, EVE.tenant)
    assert cache is not None
    hashes = [text_hash("a"), text_hash("b")]
    cache.keep("stub", {hash_: vector(number) for number, hash_ in enumerate(hashes)})
    execute(urls, "UPDATE recalld.embeddings SET used = 1")
    assert cache.get_many("stub", hashes)
    cache.close()
    reader = EmbeddingCacheReader.of(settings, EVE.tenant)
    assert all((reader.entries(), reader.holds("stub", hashes), reader.get_many("stub", hashes)))
    provider = StubProvider()
    with BatchLedger.of(settings, EVE.tenant) as ledger:
        ledger.note(EVE.agent_id, provider, ["a", "b", "c"], most_open=9)
        ledger.note(EVE.agent_id, provider, ["a"], most_open=9)
        [job] = ledger.jobs()
        ledger.save(job, without=["b"])
        ledger.settle(job.reference, ["c"])
        assert ledger.hashes_in(job.reference) == ledger.hashes(provider.identity) == {"a"}
        assert ledger.everything()
        ledger.clear_away(older_than_seconds=60)
        assert texts_in_jobs(settings, EVE.agent_id, looked_within_seconds=60)
        assert all(
            (sent_in_jobs(settings, EVE.tenant, provider.identity, ["a"]), batch_jobs_of(settings, EVE.agent_id))
        )
        ledger.stop(job.reference, "asked")
        ledger.resume(EVE.agent_id)


def write(store: Store) -> None:
    """Leave a note, a transcript with a pending, a refused and an unread one, and a dead letter."""
    here = position(1)
    spoken = [chunk("User: one", vector=vector(1)), chunk("two", 1, refused="no"), chunk("three", 2), chunk("four", 3)]
    store.write([document(NOTE, "one alpha", "beta", vectors=[vector(1), vector(2)])])
    store.write([piece(*spoken, continues=None, to=here)])
    [first, *rest] = store.chunks_of(TALK)
    store.write([piece(chunk("five", 4), continues=here, to=position(2), stale_from=3)])
    moved = MovedChunk(first.id, 0, 1, 2, 1.7e9)
    store.write([piece(continues=position(2), to=position(3), moved=(moved,), removed=(rest[-1].id,))])
    pending = {id_: (hash_, vector(9)) for id_, hash_ in store.pending_hashes().items()}
    for id_, (hash_, _) in pending.items():
        outcome = Unread("Thai") if hash_ == text_hash("three") else vector(9)
        store.write_vectors({id_: (hash_, outcome)})
    store.write([piece(chunk("six", 5), continues=position(3), to=position(4))])
    other = key("memory/b.md")
    store.write([document(other, "gone")])
    assert store.rename_document(other, key("memory/c.md"))
    store.write([DocumentDelete(key("memory/c.md"), store.revision(key("memory/c.md")))])
    for _ in range(2):
        store.add_dead_letter(other, reason="bad", error_class="Bad")
        store.retry_dead_letter(other)
        store.drop_dead_letter(other)
    store.add_dead_letter(other, reason="bad", error_class="Bad")
    store.add_sentences({text_hash("beta"): SentenceSigns(np.ones((1, 2), np.uint8), np.ones(1, np.bool_))})
    store.set_meta({"name": "text"})


def read(store: Store) -> None:
    """Call every method that reads."""
    near, ids, beta = vector(1), list(range(1, 9)), text_hash("beta")
    day = ChunkFilter(("memory",), Span(1.6e9, 1.8e9, "2023-01-01", "2024-01-01"))
    for within in (None, ChunkFilter(("memory",)), day):
        assert all((store.search_vectors(near, 9, within), store.search_text("alpha", 9, within)))
    assert all((store.text_scores("alpha", ids), store.term_counts("alpha").chunks, store.user_scores("one", ids)))
    assert all((store.vector_scores(near, ids), store.vectors_of(ids), store.vectors_by_hash([beta])))
    assert all((store.sentence_signs(ids), list(store.all_sentences()), store.lacking_sentences(9)))
    assert all((store.sentence_counts(), store.changes("memory"), store.beginnings([NOTE]), list(store.files())))
    assert all((store.chunks_by_path("memory"), store.transcript(TALK), store.named("/memory/", "a")))
    assert all((store.begun_by(text_hash("User: one")), store.times_of(ids), store.chunk_rows(ids)))
    assert all((store.texts_holding(["alpha"], [NOTE]), store.refused_chunks(TALK), store.dead_letters()))
    assert all((store.vectors_pending(), store.unread_scripts(), store.unread_among(ids), store.change_token()))
    assert (store.counts().files, store.check()) == (2, [])


class Fleet:
    """Store with umbrella's rows, and every statement that umbrella ran, once, where it can with rows to be seen."""

    def __init__(self, urls: Urls, recording: Recording, generation: str, connections: ExitStack) -> None:
        users = {"umbrella": urls.writer, "writer": urls.writer, "reader": urls.reader, "superuser": urls.superuser}
        connect = psycopg.connect
        self._users = {
            user: connections.enter_context(closing(connect(url, autocommit=True))) for user, url in users.items()
        }
        self.recorded = set(recording.values)
        self.statements = [self._best(text, values, generation) for text, values in recording.values.items()]

    def _best(self, text: str, recorded: list[Any], generation: str) -> Statement:
        """Return the statement with values for which umbrella has rows now, if there are any."""
        values = [*recorded]
        for mapping in filter(lambda bound: isinstance(bound, Mapping), recorded):
            values += [mapping | {"generation": generation}, mapping | {"generation": generation, **WIDE}]
        statements = [Statement(text, bound) for bound in values]
        return next(filter(self.is_seen, statements), statements[-1])

    def is_seen(self, statement: Statement) -> bool:
        """Return True if umbrella's own rows are in the answer, or would change."""
        outcome = self.outcome("umbrella", EVE.tenant, statement)
        return not isinstance(outcome, type) and outcome[0] > 0

    def outcome(self, user: str, tenant: str | None, statement: Statement) -> Outcome:
        """Run a statement in a transaction that is rolled back."""
        connection = self._users[user]
        try:
            with connection.transaction(force_rollback=True):
                if tenant is not None:
                    connection.execute("SELECT set_config('recalld.tenant', %s, true)", [tenant])
                cursor = connection.execute(statement.text.encode(), statement.values)
                return cursor.rowcount, cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            return type(error)

    def outcomes(self, change: Callable[[Statement], Statement]) -> dict[tuple[str, str | None, str], Outcome]:
        """Return the outcomes for both users, with another tenant's setting, an empty one and none."""
        return {
            (user, tenant, statement.text): self.outcome(user, tenant, change(statement))
            for user in ("writer", "reader")
            for tenant in ("acme", "", None)
            for statement in self.statements
        }

    def empty(self) -> None:
        """Delete all rows."""
        tables = "SELECT relname FROM pg_class WHERE relnamespace = 'recalld'::regnamespace AND relkind IN ('r', 'p')"
        connection = self._users["superuser"]
        for (table,) in connection.execute(f"{tables} AND NOT relispartition AND relname <> 'schema_steps'"):
            connection.execute(f"DELETE FROM recalld.{table}".encode())


@pytest.fixture
def fleet(settings: Settings, fleet_urls: Urls, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    of_fleet = Settings.model_validate({"home": settings.home, "provider": "stub", "store": {"url": fleet_urls.writer}})
    with monkeypatch.context() as recorded, ExitStack() as connections:
        recording = Recording(recorded)
        generation = use_everything(of_fleet, fleet_urls)
        recorded.undo()
        yield Fleet(fleet_urls, recording, generation, connections)


def test_no_statement_of_the_code_is_left_out(fleet: Fleet) -> None:
    assert not [text for text in catalogue() if not any(text in recorded for recorded in fleet.recorded)]
    unseen = [statement.text for statement in fleet.statements if not fleet.is_seen(statement)]
    faults = {_bound(text) for text in (*FLAWS.values(), SELECT_WORDLESS)}
    assert {text for text in unseen if text.lstrip().startswith("SELECT")} == faults, "the others have rows to show"
    assert len(fleet.statements) - len(unseen) > 100


@pytest.mark.parametrize("change", [lambda statement: statement, Statement.without_tenant], ids=["as it is", "defect"])
def test_another_setting_finds_and_changes_nothing(fleet: Fleet, change: Callable[[Statement], Statement]) -> None:
    with_rows = fleet.outcomes(change)
    assert {error for error in with_rows.values() if isinstance(error, type)} == {errors.InsufficientPrivilege}
    fleet.empty()
    without_rows = fleet.outcomes(change)
    assert {run: outcome for run, outcome in with_rows.items() if outcome != without_rows[run]} == {}


def test_no_statement_reads_or_writes_a_partition(fleet: Fleet) -> None:
    for statement in fleet.statements:
        text = _PARTED.sub(r"recalld.\1_0", statement.text)
        if text != statement.text:
            for user in ("writer", "reader"):
                outcome = fleet.outcome(user, EVE.tenant, Statement(text, statement.values))
                assert outcome is errors.InsufficientPrivilege, text


def catalogue() -> set[str]:
    """Return the statements that modules of the store have by name, as psycopg gets them."""
    texts: set[str] = set()
    for package in (memory.store.postgres, memory.index, memory.embedding, memory.embedding.batch_jobs):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for constant in vars(importlib.import_module(module.name)).values():
                texts |= set(_texts(constant))
    return texts


def _texts(constant: object) -> Iterator[str]:
    if isinstance(constant, Mapping | tuple):
        for part in constant.values() if isinstance(constant, Mapping) else constant:
            yield from _texts(part)
    elif isinstance(constant, str) and re.match(r"[\s(]*(SELECT|INSERT|UPDATE|DELETE)\b", constant):
        with suppress(KeyError, IndexError, ValueError):  # a part of statements
            text = in_postgres(constant) if "{" in constant else constant
            if _GUARDED.search(text):
                yield _bound(text)


def _bound(text: str) -> str:
    """Return a statement as psycopg gets it."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text)
