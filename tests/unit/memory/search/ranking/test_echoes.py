"""Questions asked again, and what remains of the conversations that hold them."""

from __future__ import annotations

import pytest

from memory.search.ranking.echoes import is_echo, weakened, without_echoes
from memory.store.reader import ChunkRow
from schemas.documents import DocumentKey

QUERY = "Which port does the staging gateway listen on?"


def row(text: str, *, path: str = "sessions/a.jsonl") -> ChunkRow:
    source = "sessions" if path.endswith(".jsonl") else "memory"
    return ChunkRow(1, DocumentKey(source, path), 0, 1, 9, text)


def remainder(text: str, *, query: str = QUERY, path: str = "sessions/a.jsonl") -> str | None:
    rows = without_echoes(query, {1: row(text, path=path)}).rows
    return rows[1].text if rows else None


@pytest.mark.parametrize("turn", [QUERY, QUERY.lower(), "what port does the gateway in staging listen on?"])
def test_a_question_much_like_the_query_is_an_echo(turn: str) -> None:
    assert is_echo(QUERY, turn)


@pytest.mark.parametrize(
    "turn",
    [
        "The staging gateway listens on port 18443.",
        "Which port does the database listen on?",
        f"{QUERY} I ask because the label printer's agent took 8080, so I moved it to 18443 with a rule in the proxy.",
    ],
)
def test_statements_and_other_questions_are_no_echoes(turn: str) -> None:
    assert not is_echo(QUERY, turn)


def test_the_answer_to_a_repeated_question_stays_evidence() -> None:
    assert remainder(f"[2026-11-24 09:00] User: {QUERY}\n[2026-11-24 09:01] Assistant: 18443.") == "18443."


@pytest.mark.parametrize(
    "text",
    [
        f"[2026-11-24 09:00] User: {QUERY}\n[2026-11-24 09:01] Assistant: I don't know.",
        "User: Where does Noor live?\nAssistant: Sorry, I couldn't find that.",
        "User: 钥匙放在哪里？\nAssistant: 我不知道。",
    ],
)
def test_a_question_without_an_answer_adds_nothing(text: str) -> None:
    remainders = without_echoes(QUERY, {1: row(text)})
    assert weakened({1: 7.0, 2: 3.0}, remainders.words) == weakened({1: 0.9, 2: 3.0}, remainders.near) == {2: 3.0}


def test_an_echo_in_a_session_note_adds_nothing() -> None:
    text = f"# Session of 2026-11-24\n\n**User**: {QUERY}\n\n**Assistant**: I don't know."
    assert (remainder(text, path="memory/2026-11-24-0900.md") or "").strip() == "# Session of 2026-11-24"


def test_chats_and_notes_without_the_query_keep_their_evidence() -> None:
    assert remainder("User: Anna: Where did you go?\nAssistant: Ben: To Oslo, by night train.") is None
    assert remainder(f"{QUERY} It is 18443.", path="memory/gateway.md") is None
