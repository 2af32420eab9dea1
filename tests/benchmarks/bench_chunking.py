"""Megabytes of notes cut a second. Run: python -m tests.benchmarks.bench_chunking [--megabytes 20]"""

from __future__ import annotations

import argparse
import random
import time

from memory.chunking.chunker import chunk_text, estimate_tokens, text_hash

_WORDS = ["deploy", "gateway", "config", "memory", "index", "vector", "search", "embed", "provider", "token", "session"]
_CHINESE = "今天我们讨论了数据库迁移的问题，决定先在测试环境部署新版本。"


def notes(megabytes: float, *, share_of_chinese: float, seed: int = 7) -> list[str]:
    """Daily notes of about 8 KB with headings, lists, fences, paragraphs and some Chinese."""
    source = random.Random(seed)
    documents: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        lines = ["# A day", ""]
        length = 0
        while length < 8000:
            draw = source.random()
            if draw < 0.06:
                lines += [f"## {source.choice(_WORDS)} {source.choice(_WORDS)}", ""]
            elif draw < 0.1:
                lines += ["```sh", *(f"run --{word} {length}" for word in source.choices(_WORDS, k=6)), "```"]
            elif draw < 0.1 + share_of_chinese:
                lines += [_CHINESE * source.randint(1, 4), ""]
            elif draw < 0.6:
                lines += ["- " + " ".join(source.choices(_WORDS, k=source.randint(4, 14)))]
            else:
                lines += [" ".join(source.choices(_WORDS, k=source.randint(20, 90))) + ".", ""]
            length += len(lines[-1].encode()) + len(lines[-2].encode()) + 2
        documents.append("\n".join(lines) + "\n")
        size += len(documents[-1].encode())
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=20.0)
    arguments = parser.parse_args()
    for label, share in (("English", 0.0), ("mixed", 0.2)):
        documents = notes(arguments.megabytes, share_of_chinese=share)
        for shape, texts in (("many notes", documents), ("one file", ["".join(documents)])):
            size = sum(len(text.encode()) for text in texts) / 1e6
            begun = time.process_time()
            chunks = [chunk for text in texts for chunk in chunk_text(text)]
            cut = time.process_time() - begun
            begun = time.process_time()
            for chunk in chunks:
                text_hash(chunk.text)
            hashed = time.process_time() - begun
            tokens = sum(map(estimate_tokens, texts))
            repeated = sum(chunk.tokens for chunk in chunks) / tokens
            print(
                f"{label:8} {shape:10} {size:6.1f} MB: {cut:5.2f} s CPU = {size / cut:6.1f} MB/s, "
                f"hashes {hashed:4.2f} s, {len(chunks)} chunks "
                f"of {tokens * repeated / len(chunks):.0f} tokens, embedded/source {repeated:.2f}"
            )


if __name__ == "__main__":
    main()
