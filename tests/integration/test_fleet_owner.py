"""Owner of a fleet's generations: one lease, and no right for a process that lost it."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from memory.index.fingerprint import Fingerprint
from memory.index.generation_writer import GenerationWriter
from memory.index.postgres_generation_writer import (
    DELETED_A_STEP,
    RENEW_SECONDS,
    RETRY_SECONDS,
    OwnerLease,
    PostgresGenerationWriter,
)
from memory.index.postgres_generations import PostgresGenerations
from memory.store.errors import NotOwner, StoreAway
from schemas.settings.service import StoreSettings
from tests.postgres_server import PostgresServer, Urls
from tests.waiting import Clock

ANNA = "acme/anna"

#: Lets old generations be old.
AGE = "UPDATE recalld.generations SET meta = '{\"retired_at\": \"0\"}' WHERE state = 'old'"


def fingerprint(name: str) -> Fingerprint:
    return Fingerprint(name, "{}")


def run(urls: Urls, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(urls.superuser, autocommit=True) as connection:
        result = connection.execute(statement.encode())
        return result.fetchall() if result.description is not None else []


@pytest.fixture
def store(fleet_urls: Urls) -> StoreSettings:
    return StoreSettings(url=fleet_urls.writer)


@pytest.fixture
def built(store: StoreSettings) -> PostgresGenerations:
    """Generations of an agent: f1 answers, f2 is under construction."""
    writer = PostgresGenerationWriter(store, ANNA)
    writer.begin(fingerprint("f1"))
    assert writer.complete("f1")
    writer.begin(fingerprint("f2"))
    return writer


LATE: dict[str, Callable[[GenerationWriter], object]] = {
    "flip": lambda writer: writer.complete("f2"),
    "begin": lambda writer: writer.begin(fingerprint("f3")),
    "sweep": lambda writer: writer.sweep(older_than_seconds=0.0),
}


@pytest.mark.parametrize("act", LATE)
def test_an_owner_that_was_cut_off_changes_nothing(
    store: StoreSettings, fleet_urls: Urls, built: PostgresGenerations, act: str
) -> None:
    PostgresGenerationWriter(store, ANNA).begin(fingerprint("f2"), force=True)  # which leaves one to sweep
    clock = Clock()
    first, second = OwnerLease(store, clock=clock), OwnerLease(store, clock=clock)
    assert (first.owns(), second.owns()) == (True, False)
    before = built.current(), built.next(), built.leftovers()
    run(fleet_urls, f"UPDATE recalld.leases SET expires_at = now(); {AGE}")
    clock.now += RETRY_SECONDS
    assert second.owns()
    assert first.owns(), "it has not asked yet"

    with pytest.raises(NotOwner):
        LATE[act](PostgresGenerationWriter(store, ANNA, owner=first))
    assert (built.current(), built.next(), built.leftovers()) == before
    assert not first.owns()
    LATE[act](PostgresGenerationWriter(store, ANNA, owner=second))
    assert (built.current(), built.next(), built.leftovers()) != before


def test_an_owner_renews_its_lease_and_leaves_it_at_its_end(store: StoreSettings, fleet_urls: Urls) -> None:
    clock = Clock()
    first, second = OwnerLease(store, clock=clock), OwnerLease(store, clock=clock)
    assert first.owns()
    run(fleet_urls, "UPDATE recalld.leases SET expires_at = now() + interval '5 s'")
    clock.now += RENEW_SECONDS
    assert first.owns()
    left = run(fleet_urls, "SELECT expires_at > now() + interval '5 s', fence FROM recalld.leases")
    assert left == [(True, 1)]
    assert not second.owns()
    first.close()
    clock.now += RETRY_SECONDS
    assert (second.owns(), first.owns()) == (True, False)
    assert run(fleet_urls, "SELECT fence FROM recalld.leases") == [(2,)]


def test_a_sweep_deletes_the_rows_of_old_generations_only(
    store: StoreSettings, fleet_urls: Urls, built: PostgresGenerations
) -> None:
    writer = PostgresGenerationWriter(store, ANNA)
    other = PostgresGenerationWriter(store, "acme/ben")
    other.begin(fingerprint("f1"))
    old = built.current()
    assert writer.complete("f2")
    for agent, name in (("anna", old), ("anna", built.current()), ("ben", other.next())):
        run(
            fleet_urls,
            f"""INSERT INTO recalld.chunks (tenant, agent, generation, id, file_id, ordinal, start_line, end_line,
            vector_state, text_hash, text, words) SELECT 'acme', '{agent}', '{name}', number, 1, number, 1, 1,
            'pending', '', '', '' FROM generate_series(1, {2 * DELETED_A_STEP + 1}) AS number;
            INSERT INTO recalld.dead_letters SELECT 'acme', '{agent}', '{name}', 'memory', 'a.md', '', '', 1, 0, 0""",
        )
    writer.sweep(older_than_seconds=0.0)
    assert built.leftovers() == ([old], []), "readers may still use it"
    run(fleet_urls, AGE)
    writer.sweep(older_than_seconds=0.0)
    assert built.leftovers() == ([], [])
    left = run(fleet_urls, "SELECT agent, generation, count(*) FROM recalld.chunks GROUP BY 1, 2 ORDER BY 1")
    assert left == [(agent, name, 10_001) for agent, name in (("anna", built.current()), ("ben", other.next()))]
    assert run(fleet_urls, "SELECT count(*) FROM recalld.dead_letters") == [(2,)]


def test_while_the_server_is_away_no_process_owns_and_readers_keep_their_generation(own_server: PostgresServer) -> None:
    store = StoreSettings(url=own_server.urls().writer)
    clock = Clock()
    owner, writer = OwnerLease(store, clock=clock), PostgresGenerationWriter(store, ANNA)
    writer.begin(fingerprint("f1"))
    assert writer.complete("f1")
    token = writer.token()
    assert owner.owns()
    own_server.kill()
    clock.now += RENEW_SECONDS
    assert not owner.owns()
    assert writer.token() == token
    with pytest.raises(StoreAway):
        writer.looks()
    own_server.start()
    clock.now += RETRY_SECONDS
    assert owner.owns()
    assert writer.looks() == [(token, 0)]
