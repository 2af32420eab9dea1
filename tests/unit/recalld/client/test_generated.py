"""Files that the client carries are those that the service's own definitions make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recalld.client
from tests.answer_types import answer_types
from tests.tool_docs import tools_json

CARRIED = Path(recalld.client.__file__).parent


@pytest.mark.parametrize(("file", "content"), [("tools.json", tools_json), ("answers.py", answer_types)])
def test_a_generated_file_is_fresh(file: str, content: Any) -> None:
    assert (CARRIED / file).read_text("utf-8") == content(), "run `make docs`"
