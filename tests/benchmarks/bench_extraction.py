"""Recall and precision of the messages that are read of transcripts, by program and version, against the truth.

    python -m tests.benchmarks.bench_extraction TRUTH FOLDER... [--differences N]

TRUTH has lines of {"program", "version", "speaker", "text"}: all that was said in the transcripts and databases of the
folders, as the prompts of a run of the programs and the answers of a stand-in endpoint tell. Texts differ from one
another by a mark; texts are compared without regard to white space. `--differences` prints some of each kind.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from memory.documents.roots import OPENCLAW_DATABASE, OPENCODE_DATABASE
from memory.documents.session_database import database_of
from memory.transcripts.interpreter import Interpreter
from memory.transcripts.lines import RawLine, lines_in
from memory.transcripts.transcript_format import Message
from tests.benchmarks.frame import options


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _transcripts(folder: Path) -> Iterator[tuple[str, str, Iterable[RawLine]]]:
    """Yield the path, the program of a database, and the lines of each transcript."""
    for path in sorted(path for path in folder.rglob("*.jsonl") if path.is_file()):
        yield str(path), "", lines_in(iter([path.read_bytes()]))
    databases = ("openclaw", OPENCLAW_DATABASE, "../../sessions"), ("opencode", OPENCODE_DATABASE, "..")
    for program, name, place in databases:
        for path in sorted(folder.rglob(name)):
            database = database_of(os.path.normpath(path / place))
            for session, stat in database.sessions().items() if database is not None else ():
                lines = database.lines(session.removesuffix(".jsonl"), stat, 0, longest=None) if database else ()
                yield f"{path}: {session}", program, lines


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("truth", type=Path)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--differences", type=int, default=0)
    arguments = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    rows: dict[str, tuple[str, str]] = {}
    said: dict[str, list[str]] = defaultdict(list)
    for line in arguments.truth.read_text("utf-8").splitlines():
        truth = json.loads(line)
        row = truth["program"], truth["version"]
        text = _spaced(truth["text"])
        said[text].append(truth["speaker"])
        rows[text] = row
        counts[row]["said"] += 1
    for path, program_of_database, lines in chain.from_iterable(map(_transcripts, arguments.folders)):
        interpreter = Interpreter(None)
        readings = [interpreter.read(line.data or b"") for line in lines]
        messages = [reading for reading in readings if isinstance(reading, Message)]
        if interpreter.format is None or not messages:
            continue
        row = program_of_database or interpreter.format.name, interpreter.version or "?"
        counts[row]["files"] += 1
        for message in messages:
            counts[row]["read"] += 1
            speakers = said[_spaced(message.text)]
            if speakers:
                speaker = speakers.pop(speakers.index(message.speaker) if message.speaker in speakers else 0)
                counts[row]["found"] += 1
                counts[row]["speaker"] += speaker == message.speaker
                continue
            counts[row]["extra"] += 1
            if counts[row]["extra"] <= arguments.differences:
                print(f"extra: {path}: {message}"[:400])
    for text in [text for text, speakers in said.items() if speakers]:
        counts[rows[text]]["lost"] += 1
        if counts[rows[text]]["lost"] <= arguments.differences:
            print(f"lost: {rows[text]}: {said[text][0]}: {text}"[:400])
    print(
        f"{'program':14}{'version':10}{'files':>6}{'said':>7}{'read':>7}{'precision':>10}{'recall':>10}{'speaker':>10}"
    )
    for (program, version), count in sorted(counts.items()):
        shares = [("found", "read"), ("found", "said"), ("speaker", "found")]
        shown = "".join(f"{count[part] / max(1, count[whole]):10.2%}" for part, whole in shares)
        print(f"{program:14}{version:10}{count['files']:6}{count['said']:7}{count['read']:7}{shown}")


if __name__ == "__main__":
    main()
