"""Texts made fit to be sent: what no provider takes is replaced, what is too long is cut, prefixes are put before."""

from __future__ import annotations

import re

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_SEARCHING = "Represent this sentence for searching relevant passages: "
_INSTRUCTED = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

#: A pattern in the names of a family of open models, and what its model card puts before queries and documents. The
#: first that matches counts. bge-m3 and bge's Chinese models have none here.
_FAMILIES = tuple(
    (re.compile(pattern), query, document)
    for pattern, query, document in (
        # https://huggingface.co/nomic-ai/nomic-embed-text-v1.5
        (r"nomic-embed-text", "search_query: ", "search_document: "),
        # https://huggingface.co/intfloat/multilingual-e5-large-instruct
        (r"\be5-(?:mistral-7b|large)-instruct", f"{_INSTRUCTED} ", ""),
        # https://huggingface.co/intfloat/multilingual-e5-large
        (r"\be5-(?:small|base|large)\b", "query: ", "passage: "),
        # https://huggingface.co/mixedbread-ai/mxbai-embed-large-v1
        (r"mxbai-embed-(?:2d-)?large", _SEARCHING, ""),
        # https://huggingface.co/Qwen/Qwen3-Embedding-0.6B
        (r"qwen3-embedding", _INSTRUCTED, ""),
        # https://ai.google.dev/gemma/docs/embeddinggemma/model_card
        (r"embedding-?gemma", "task: search result | query: ", "title: none | text: "),
        # https://huggingface.co/Snowflake/snowflake-arctic-embed-l-v2.0
        (r"arctic-embed(?:2|.*-v2\b)", "query: ", ""),
        # https://huggingface.co/Snowflake/snowflake-arctic-embed-l
        (r"arctic-embed", _SEARCHING, ""),
        # https://huggingface.co/BAAI/bge-large-en-v1.5, which Ollama calls bge-large
        (r"\bbge-(?:small|base|large)\b(?!-zh)", _SEARCHING, ""),
    )
)


def family_prefixes(model: str) -> tuple[str, str]:
    """Return what the model's family puts before queries and before documents, by its name; "" for nothing."""
    name = model.lower().replace("_", "-")
    return next(((query, document) for pattern, query, document in _FAMILIES if pattern.search(name)), ("", ""))


def clean(text: str) -> str:
    """Replace lone surrogates (no UTF-8 can hold them) by U+FFFD and NUL (it ends a C string) by a space."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if not text.isascii():
        text = _LONE_SURROGATE.sub("\ufffd", text)
    return text


def cut_to_bytes(text: str, limit: int) -> str:
    """The longest start of a clean text that takes at most `limit` bytes of UTF-8."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")
