"""Standing instructions and lines with triggers in curated files."""

from __future__ import annotations

import pytest

from memory.context.bootstrap import cut
from memory.context.curated import curated_blocks, triggered

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
    assert [block.text for block in curated_blocks(text) if block.marks.is_standing] == standing


def test_blocks_name_their_lines() -> None:
    blocks = curated_blocks("# Me\n\n## Rules\n- a\n- b\n\n# Else\n- c <!-- always -->")
    assert [(block.start, block.end) for block in blocks] == [(3, 6), (8, 8)]


NOTES = """
- The vault holds the deploy password <!-- trigger: deploy, 部署 --> <!-- importance: 9 -->
- Ports begin at 7000 <!-- trigger: port, C++ -->
- The café opens at nine <!-- trigger: café -->
- Staging is on Fridays <!-- trigger: deploy --> <!-- importance: 2 -->
- Ask Ada <!-- trigger: deploy -->
- Nothing
"""

TRIGGERED = {
    "How do I DEPLOY this?": ["vault", "Ada", "Staging"],
    "redeployed": [],
    "我们怎么部署": ["vault"],
    "which Port?": ["Ports"],
    "written in C++": ["Ports"],
    "the cafe": ["café"],
    "hello": [],
}


@pytest.mark.parametrize(("prompt", "found"), TRIGGERED.items())
def test_a_prompt_finds_lines_by_their_triggers_the_most_important_first(prompt: str, found: list[str]) -> None:
    blocks = triggered(curated_blocks(NOTES), prompt)
    assert len(blocks) == len(found)
    assert all(word in block.text and "<!--" not in block.text for word, block in zip(found, blocks, strict=True))


def test_at_most_three_lines_are_triggered() -> None:
    text = "\n".join(f"- {number} <!-- trigger: x --> <!-- importance: {number} -->" for number in range(9))
    assert [block.text for block in triggered(curated_blocks(text), "x")] == ["- 8", "- 7", "- 6"]


@pytest.mark.parametrize(
    ("projects", "shown"),
    [((), ["- b"]), (("github.com/Acme/shop",), ["- a", "- b"]), (("github.com/acme/other",), ["- b"])],
)
def test_lines_of_a_project_are_for_that_project(projects: tuple[str, ...], shown: list[str]) -> None:
    text = "## Rules\n- a <!-- project: github.com/acme/shop -->\n\n# Else\n- b <!-- always -->\n"
    blocks = curated_blocks(text, projects=projects)
    assert [block.text for block in blocks if block.marks.is_standing] == shown


@pytest.mark.parametrize("budget", [64, 100, 1_000, 19_999])
def test_a_cut_text_keeps_its_beginning_and_its_end_within_the_budget(budget: int) -> None:
    text = "a" * 10_000 + "z" * 10_000
    shown = cut(text, "MEMORY.md", budget=budget)
    assert len(shown) <= budget
    assert shown.startswith("a")
    if budget > 200:
        assert shown.endswith("z")
        assert "MEMORY.md is cut here: 20000 characters in all" in shown
    assert cut(text, "MEMORY.md", budget=20_000) == text
