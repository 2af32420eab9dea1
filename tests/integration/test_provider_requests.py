"""The table of what providers are sent agrees with what they are sent."""

from __future__ import annotations

from pathlib import Path

from memory.embedding.providers.presets import PRESETS
from tests.provider_requests import ROWS, document

TABLE = Path(__file__).parents[2] / "docs" / "providers.md"


def test_the_table_says_what_is_sent_now() -> None:
    assert document() == TABLE.read_text("utf-8"), "run `python -m tests.provider_requests docs/providers.md`"


def test_every_service_that_has_a_name_is_in_the_table_with_its_documentation() -> None:
    assert {row.provider for row in ROWS} >= set(PRESETS)
    assert all(row.documentation.startswith("https://") for row in ROWS)
