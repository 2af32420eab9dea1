"""Standing instructions and lines with triggers in curated files."""

from __future__ import annotations

import pytest

from memory.chunking.curated import Marks, curated_blocks

STANDING = {
    "a section of preferences": (
        "# Me\ntext\n## Preferences\n\n- metric units\n- short answers\n## Else\nmore\n",
        ["## Preferences\n\n- metric units\n- short answers"],
    ),
    "its deeper sections belong to it": (
        "## Rules\n- a\n### Deeper\n- b\n## Else\n- c",
        ["## Rules\n- a\n### Deeper\n- b"],
    ),
    "a Chinese heading": ("## 偏好\n- 用公制单位\n", ["## 偏好\n- 用公制单位"]),
    "upper case and closing marks": ("## PREFERENCES ##\n- a\n", ["## PREFERENCES ##\n- a"]),
    "a line with a comment": ("- a <!-- always -->\n- b\n", ["- a"]),
    "a paragraph below a comment": ("<!-- always -->\none\ntwo\n\nthree\n", ["one\ntwo"]),
    "a section by a comment on its heading": (
        "## Ways <!-- always -->\n- a\n\n- b\n# Else\n- c",
        ["## Ways\n- a\n\n- b"],
    ),
    "an empty section": ("## Preferences\n\n## Else\n- a", []),
    "a heading that only begins so": ("## Preferences of others\n- a", []),
    "another comment": ("- a <!-- todo -->\n", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "standing"), STANDING.values(), ids=STANDING)
def test_standing_instructions_are(text: str, standing: list[str]) -> None:
    assert [block.text for block in curated_blocks(text, path="MEMORY.md") if block.marks.is_standing] == standing


def test_blocks_name_their_lines() -> None:
    blocks = curated_blocks("# Me\n\n## Rules\n- a\n- b\n\n# Else\n- c <!-- always -->", path="MEMORY.md")
    assert [(block.start, block.end) for block in blocks] == [(3, 6), (8, 8)]


def test_comments_of_a_line_say_when_and_for_which_projects_it_is_shown() -> None:
    line = "- Vault <!-- trigger: deploy, 部署 --> <!-- importance: 9 --> <!-- project: github.com/Acme/shop -->"
    [block] = curated_blocks(f"## Rules\n{line}\n", path="USER.md")
    assert block.marks == Marks(False, ("deploy", "部署"), 9, ("github.com/acme/shop",))
    assert (block.text, block.source, block.meaning) == ("- Vault", "USER.md#L2-L2", "deploy, 部署: - Vault")
    assert curated_blocks("- a <!-- always -->", path="USER.md")[0].meaning is None
