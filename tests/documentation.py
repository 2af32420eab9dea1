"""Pages of the documentation, and the examples in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.daemon import REPOSITORY

#: Name -> text of every page with examples.
PAGES = {
    file.relative_to(REPOSITORY).as_posix(): file.read_text("utf-8")
    for file in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md")))
}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: The end of a command: a remark for the reader.
_REMARK = re.compile(r"\s+# (.*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block and the language that it names."""

    page: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a shell block, continued lines joined, and the remark behind it."""

    text: str
    remark: str

    @property
    def runs_on(self) -> bool:
        """Return True if it ends with Ctrl-C only."""
        return self.remark.startswith("runs until Ctrl-C")

    @property
    def needs(self) -> bool:
        """Return True if it needs what a test machine may not have: a network, another program, minutes."""
        return self.remark.startswith("needs ")


def blocks(page: str, language: str | None = None) -> list[Block]:
    """Return the blocks of a page in order, all of them or those in one language."""
    found = [Block(page, name, text) for name, text in _BLOCK.findall(PAGES[page])]
    return [block for block in found if language is None or block.language == language]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a shell block."""
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        if line.strip() and not line.startswith("#"):
            remark = _REMARK.search(line)
            yield Command(_REMARK.sub("", line).strip(), remark[1] if remark else "")
