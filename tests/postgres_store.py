"""Stores in PostgreSQL for tests: many in one database, each of an agent of its own."""

from __future__ import annotations

import itertools

from memory.store.options import StoreOptions
from memory.store.postgres.connection import Database
from memory.store.postgres.writer import PostgresStore, create_generation
from schemas.agents import Scope

_numbers = itertools.count(1)


def postgres_store(database: Database, options: StoreOptions | None = None) -> PostgresStore:
    """An empty generation of an agent that no other test has."""
    scope = Scope("acme", f"agent{next(_numbers)}")
    generation = create_generation(database, scope, fingerprint="f", description="{}")
    return PostgresStore(database, scope, generation, options=options)
