"""Note that a person leaves documents out (`memory.left_out`), or takes them in again."""

from __future__ import annotations

import json
from collections.abc import Mapping

from memory.agent_files import AgentFiles
from memory.left_out import NOTED, file_state, noted
from memory.store.writer import Store
from schemas.documents import DocumentKey


def leave_out(store: Store, files: AgentFiles, tried: Mapping[DocumentKey, float]) -> set[DocumentKey]:
    """Leave documents out that were tried in vain at these Unix times; returns those that are left out from now on.

    One that was changed since, or has no file, is not: nobody knows whether it can be read now.
    """
    states = {key: state for key in tried if (state := file_state(files, key)) is not None}
    unchanged = {key: state for key, state in states.items() if max(state[1], state[2]) / 1e9 <= tried[key]}
    if unchanged:
        before = {key: state for key, state in noted(store).items() if state == file_state(files, key)}
        _note(store, before | unchanged)
    return set(unchanged)


def take_in(store: Store, key: DocumentKey) -> None:
    """Leave a document out no longer."""
    left = noted(store)
    if left.pop(key, None) is not None:
        _note(store, left)


def _note(store: Store, left: Mapping[DocumentKey, list[int]]) -> None:
    store.set_meta({NOTED: json.dumps([[key.source, key.path, state] for key, state in left.items()])})
