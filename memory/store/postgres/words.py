"""Words of texts as FTS5 sees them: the tokens of its own tokenizer, which apsw lends to Python.

A stream has a text's tokens in order, with single spaces between and around them (" gate way "), which no token holds.
An expression of FTS5 matches where its pattern begins at a token.
"""

from __future__ import annotations

import shlex
import threading
from typing import cast

import apsw

from memory.chunking.segmenting import FTS5_TOKENIZER, match_terms

_local = threading.local()


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text that `memory.chunking.segmenting.index_text` prepared, in order."""
    if not hasattr(_local, "tokenize"):
        # Each thread has its own: a tokenizer has a buffer. SQL doubles the quotation marks.
        name, *arguments = shlex.split(FTS5_TOKENIZER.replace("''", "'"))
        connection = apsw.Connection(":memory:", flags=apsw.SQLITE_OPEN_READONLY)
        _local.tokenize = connection.fts5_tokenizer(name, arguments)
    flags = apsw.FTS5_TOKENIZE_DOCUMENT
    tokens = _local.tokenize(text.encode(), flags, None, include_offsets=False, include_colocated=False)
    return cast("list[str]", tokens)


def stream_of(text: str) -> str:
    """Return the stream of a prepared text."""
    return f" {' '.join(tokens_of(text))} "


def patterns_of(query: str) -> dict[str, bytes]:
    """Return the patterns of a query's terms by the names of `match_terms`; empty for a term that matches nothing.

    The pattern of a phrase ends with a space, that of a prefix does not.
    """
    patterns = {}
    for name, expression in match_terms(query).items():
        quoted = expression.removesuffix("*")
        tokens = tokens_of(quoted[1:-1].replace('""', '"'))
        patterns[name] = " ".join([*tokens, ""] if tokens and quoted == expression else tokens).encode()
    return patterns
