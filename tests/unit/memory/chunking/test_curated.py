"""Standing instructions, lines with triggers and lines of projects in curated files."""

from __future__ import annotations

import time

import pytest

from memory.chunking.curated import CuratedFile, Directives, curated_blocks, repository_of, unreadable_directives

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
    "sections within keep to it, whatever their marks": (
        "## Rules\n### A <!-- importance: 3 -->\n- a\n### B\n- b\n## Else\n- c",
        ["### A\n- a", "### B\n- b"],
    ),
    "a section of rules in one of a project": (
        "# A <!-- project: a/b -->\n- a\n## Rules\n- b\n",
        ["## Rules\n- b"],
    ),
    "a comment above a heading is about nothing": (
        "## Rules\n- a\n<!-- trigger: b -->\n### B\n- c",
        ["## Rules\n- a\n### B\n- c"],
    ),
    "rules within lines with triggers": ("# A <!-- trigger: a -->\n- a\n## Rules\n- b\n", []),
    "comments above one another": ("<!-- project: a/b -->\n<!-- always -->\none\n\ntwo\n", ["one"]),
    "a heading with a comment in code": ("## Rules\n```\n# a\n```\n- b\n", ["## Rules\n```\n# a\n```\n- b"]),
    "a heading that only begins so": ("## Preferences of others\n- a", []),
    "another comment": ("- a <!-- todo -->\n", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "standing"), STANDING.values(), ids=STANDING)
def test_standing_instructions_are(text: str, standing: list[str]) -> None:
    assert [block.text for block in curated_blocks(text, path="MEMORY.md") if block.directives.is_standing] == standing


def test_blocks_name_their_lines() -> None:
    blocks = curated_blocks("# Me\n\n## Rules\n- a\n- b\n\n# Else\n- c <!-- always -->", path="MEMORY.md")
    assert [(block.start, block.end) for block in blocks] == [(3, 6), (8, 8)]


def test_comments_of_a_line_say_when_and_for_which_projects_it_is_shown() -> None:
    line = "- Vault <!-- trigger: deploy, 部署 --> <!-- importance: 9 --> <!-- project: github.com/Acme/shop -->"
    [block] = curated_blocks(f"## Rules\n{line}\n", path="USER.md")
    assert block.directives == Directives(
        False, ("deploy", "部署"), 9, frozenset({frozenset({"github.com/acme/shop"})})
    )
    assert (block.text, block.source, block.meaning) == ("- Vault", "USER.md#L2-L2", "deploy, 部署: - Vault")
    assert curated_blocks("- a <!-- always -->", path="USER.md")[0].meaning is None


SHOP, BANK, BOTH = {"github.com/acme/shop"}, {"github.com/acme/bank"}, {"github.com/acme/shop", "github.com/acme/bank"}
SHOPS, BANKS = "<!-- project: github.com/acme/shop -->", "<!-- project: github.com/acme/bank -->"

#: File, projects of a prompt, and the words that it gets. "x" is of the shop, "y" of both at once, "z" of all.
INHERITED = {
    "a line with a mark of its own": f"## A {SHOPS}\n- x <!-- always -->\n- y {BANKS}\n## B\n- z",
    "a section within": f"## A {SHOPS}\n- x\n### B {BANKS}\n- y\n### C\n- x\n# D\n- z",
    "a paragraph": f"## A {SHOPS}\n{BANKS}\n- y\n\n- x\n## B\n- z",
    "a line of a paragraph": f"{SHOPS}\n- x\n- y {BANKS}\n- x <!-- importance: 1 -->\n\n- z",
    "comments above one another": f"{SHOPS}\n{BANKS}\n<!-- always -->\n- y\n\n- z",
    "a comment above a blank line": f"{SHOPS}\n\n- x\n- x\n\n- z",
    "a comment above a heading": f"{SHOPS}\n## A\n- x\n\n- y {BANKS}\n## B\n- z",
    "a heading that is a comment alone": f"## {SHOPS}\n- x\n\n- x\n##\n- z",
    "code with comments like headings": f"## A {SHOPS}\n````sh\n# B\n```\n# C\n\n- x\n````\n- x\n## D\n- z",
    "code without an end": f"```\n- z\n## A {SHOPS}\n- x\n",
    "code within a line": f"```z```\n- z 1\n## A {SHOPS}\n- x\n## B\n- z 2",
    "code of a paragraph": f"{SHOPS}\n```\nx 1\n\nx 2\n```\n\nz",
}


def words_for(text: str, projects: set[str]) -> str:
    """Return the words, among x, y and z, that prompts about these projects get of a file."""
    shown = CuratedFile.of(text, path="MEMORY.md").lines_for(projects, but=())(text)
    return "".join(word for word in shown if word in "xyz")


@pytest.mark.parametrize("text", INHERITED.values(), ids=INHERITED)
def test_projects_are_inherited_and_all_must_fit(text: str) -> None:
    without_marks = text.replace(SHOPS, "").replace(BANKS, "").replace("<!-- always -->", "")
    for projects, words in ((set(), "z"), (SHOP, "xz"), (BANK, "z"), (BOTH, "xyz")):
        assert words_for(text, projects) == "".join(word for word in without_marks if word in words)


def test_a_line_below_more_projects_than_a_prompt_names_is_hidden() -> None:
    marks = "".join(f"<!-- project: a/{number} -->\n" for number in range(20))
    assert words_for(f"{marks}- x\n\n- z", {f"a/{number}" for number in range(20)}) == "z"


def test_several_projects_of_a_line_are_alternatives() -> None:
    for line in (f"- x {SHOPS} {BANKS}", "- x <!-- project: github.com/acme/shop， github.com/acme/bank, -->"):
        assert [words_for(line, projects) for projects in (SHOP, BANK, {"a/b"})] == ["x", "x", ""]


UNREADABLE = [
    "<!-- project -->",
    "<!-- project: -->",
    "<!--project:, -->",
    "<!-- projects: github.com/acme/shop -->",
    "<!-- PROJECT = github.com/acme/shop -->",
    "<!-- Project github.com/acme/shop -->",
    "<!-- project: github.com/acme/shop",
    "<!-- project: github.com/acme/shop <!-- always -->",
    "<!-- project: github.com/acme/shop or github.com/acme/bank -->",
    "<!-- project: github.com/acme/shop, /srv/shop -->",
    "<!-- project: github.com/acme/shop --> <!-- project: -->",
    "<!--- project github.com/acme/shop --->",
]


@pytest.mark.parametrize("mark", UNREADABLE)
def test_a_project_mark_that_cannot_be_read_hides_its_lines(mark: str) -> None:
    for text in (f"- z\n- x {mark}\n- z", f"# A\n## x {mark}\n- x\n### B\n- x <!-- always -->\n# C\n- z"):
        assert set(words_for(text, BOTH)) == {"z"}
        assert [one.text for one in curated_blocks(text, path="MEMORY.md") if one.directives.are_for(BOTH)] == []
        assert unreadable_directives(text) == [2]
    assert words_for(f"{mark}\nx\n\nz", BOTH) == "z"


@pytest.mark.parametrize("other", ["<!-- todo: project -->", "<!-- always", "<!-- trigger deploy -->", "project: a"])
def test_other_comments_hide_nothing(other: str) -> None:
    assert "x" in words_for(f"- x {other}", set())
    assert unreadable_directives(f"- x {other}") == []


@pytest.mark.parametrize(
    "address",
    [
        "github.com/acme/shop",
        "GitHub.com/Acme/Shop/",
        "https://github.com/acme/shop.git",
        "https://ada:key@github.com/acme/shop/?tab=readme#usage",
        "git@github.com:acme/shop.git",
        "github.com:acme/shop",
        "ssh://git@github.com:22/acme/shop",
        "git+ssh://git@GITHUB.com/acme/shop.git/",
    ],
)
def test_addresses_of_a_repository_are_one_project(address: str) -> None:
    assert {repository_of(address)} == SHOP
    assert words_for(f"- x <!-- project: {address} -->", SHOP) == "x"


@pytest.mark.parametrize(
    "path", ["", "/srv/shop", "./shop", "../shop.git", "~/shop", "~ada/shop", "C:\\shop", "c:/shop", "file:///srv/shop"]
)
def test_a_local_path_is_no_project(path: str) -> None:
    assert repository_of(path) is None
    assert words_for(f"- x <!-- project: {path} -->", BOTH) == ""


#: Beginnings and parts of texts that cost a regular expression the square of their length, or more.
LONG = [
    ("- note <!-- trigger:", " "),
    ("", " "),
    ("", "#"),
    ("# a", " #"),
    ("", "<!-- trigger:"),
    ("", "a <!-- always -->"),
    ("", "<!-- project: a/b -->\n"),
    ("", "# a <!-- project: a/b -->\n## b <!-- always -->\n"),
    ("<!-- project: ", "a, "),
    ("", "-->"),
    ("", "`"),
]


@pytest.mark.parametrize(("beginning", "part"), LONG)
def test_a_file_is_read_in_time_that_grows_with_its_length(beginning: str, part: str) -> None:
    times = []
    for size in (50_000, 1_000_000):
        text = beginning + part * (size // len(part))
        begun = time.process_time()
        CuratedFile.of(text, path="MEMORY.md").lines_for(SHOP, but=())(text[:700])
        unreadable_directives(text)
        times.append(time.process_time() - begun)
    assert times[1] < 100 * times[0] + 0.5, "twenty times the text"


def test_a_number_of_any_length_is_no_error() -> None:
    [block] = curated_blocks(f"- a <!-- importance: {'9' * 10_000} -->", path="MEMORY.md")
    assert block.directives.importance == 99
