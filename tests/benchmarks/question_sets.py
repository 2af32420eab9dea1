"""Sets of questions that this project makes, in the form that `bench_questions` reads.

    python -m tests.benchmarks.question_sets facts DIRECTORY [--remarks]
    python -m tests.benchmarks.question_sets echoes SET... DIRECTORY [--apart]

`facts` writes `facts_en` and `facts_zh`, and two further pairs, `..._apart` and `..._third`, whose texts others wrote
without a look at these: 30 facts each that change one to four times, and a question for the current value.
`facts/*.txt` holds the sentences: `?` the question, `-` the statements in their order, `=` the line of MEMORY.md, `~` a
later remark on the same subject that answers nothing, written with `--remarks` only. A seeded draw puts each statement
on a later day than the one before, into a daily note or a transcript, among the lines of `facts/<language>-filler.txt`.
Every second fact of MEMORY.md has its current value there only. `..._outdated` has all current values in MEMORY.md as
well, and three later sessions that answer each question with the first value. `sample` is `deploy/sample-workspace`
with the questions of `facts/sample.txt`.

`echoes` copies sets and adds three sessions to each scope, dated after everything, that ask each question of the set
and get "I don't know". With `--apart` each question has three sessions of its own.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from memory.chunking.sentences import is_cjk
from tests.benchmarks.frame import options
from tests.daemon import REPOSITORY

_TEXTS = Path(__file__).parent / "facts"
_FACTS = ("en", "zh", "en-apart", "zh-apart", "en-third", "zh-third")
_FIRST_DAY, _DAYS = date(2026, 9, 21), 60
#: Days of the sessions that ask again: later than every day of a set.
_LATER = (date(2026, 11, 24), date(2026, 11, 25), date(2026, 11, 26))
_ANSWERS = {
    False: ("Noted.", "Good to know, I keep that in mind.", "All right."),
    True: ("记下了。", "好的。", "知道了。"),
}
_UNKNOWN = {False: "I don't know.", True: "我不知道。"}


@dataclass(slots=True)
class Fact:
    """A question, its statements in order of time, the line of MEMORY.md, and a remark beside it."""

    question: str
    statements: list[str] = field(default_factory=list)
    curated: str = ""
    remark: str = ""


def facts_of(text: str) -> list[Fact]:
    """Return the facts of a file of texts."""
    facts: list[Fact] = []
    for line in text.splitlines():
        sign, words = line[:1], line[2:]
        if sign == "?":
            facts.append(Fact(words))
        elif sign == "-":
            facts[-1].statements.append(words)
        elif sign == "=":
            facts[-1].curated = words
        elif sign == "~":
            facts[-1].remark = words
    return facts


def write_session(path: Path, day: date, turns: Iterable[tuple[str, str]]) -> None:
    """Write a transcript of turns, each a user's message and its answer."""
    header: dict[str, Any] = {"type": "session", "id": path.stem, "timestamp": f"{day}T09:00:00Z"}
    lines = [header]
    for number, turn in enumerate(turns):
        for role, text in zip(("user", "assistant"), turn, strict=True):
            message = {"role": role, "content": [{"type": "text", "text": text}]}
            time = f"{day}T{9 + number // 60 % 12:02}:{number % 60:02}:00Z"
            lines.append({"type": "message", "timestamp": time, "message": message})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def write_facts(name: str, folder: Path, *, outdated: bool = False, remarks: bool = False) -> None:
    """Write the set of the changing facts in the file of this name, `en` or `zh-apart`."""
    draw = random.Random(36)
    language = name[:2]
    facts = facts_of((_TEXTS / f"{name}.txt").read_text(encoding="utf-8"))
    filler = (_TEXTS / f"{language}-filler.txt").read_text(encoding="utf-8").splitlines()
    notes: dict[int, list[str]] = {day: draw.sample(filler, 4) for day in range(_DAYS)}
    talks: dict[int, list[str]] = {day: draw.sample(filler, 2) for day in range(_DAYS)}
    curated = [*draw.sample(filler, 6)]
    relevant = defaultdict[str, list[str]](list)
    for number, fact in enumerate(facts):
        is_curated, in_memory_only = bool(fact.curated), bool(fact.curated) and number % 4 < 2 and not outdated
        days = sorted(draw.sample(range(_DAYS - 5), len(fact.statements)))
        relevant[fact.question] = [fact.statements[-1]]
        for place, (day, text) in enumerate(zip(days, fact.statements, strict=True)):
            if not (in_memory_only and text == fact.statements[-1]):
                (notes if (number + place) % 2 else talks)[day].append(text)
        if is_curated or outdated:
            line = fact.curated or fact.statements[-1]
            curated.append(line)
            relevant[fact.question].append(line)
        place_of_remark = draw.choice((notes, talks))[draw.randrange(days[-1] + 1, _DAYS)]
        if remarks:
            place_of_remark.append(fact.remark)
    answers = _ANSWERS[language == "zh"]
    for day in range(_DAYS):
        draw.shuffle(notes[day])
        draw.shuffle(talks[day])
        when = _FIRST_DAY + timedelta(day)
        _write(folder / f"workspace/memory/{when}.md", [f"# {when}", "", *(f"- {text}" for text in notes[day])])
        turns = [(text, draw.choice(answers)) for text in talks[day]]
        write_session(folder / f"sessions/{when}.jsonl", when, turns)
    draw.shuffle(curated)
    _write(folder / "workspace/MEMORY.md", ["# Memory", "", *(f"- {text}" for text in curated)])
    write_queries(folder, [(fact.question, relevant[fact.question], "") for fact in facts])
    for day in _LATER if outdated else ():
        write_session(folder / f"sessions/{day}.jsonl", day, [(fact.question, fact.statements[0]) for fact in facts])


def write_queries(folder: Path, questions: Sequence[tuple[str, Sequence[str], str]]) -> None:
    """Write `queries.jsonl`: questions, the texts that answer each, and the file of these if it is known."""
    files = [
        path for part in ("workspace", "sessions") for path in sorted((folder / part).rglob("*")) if path.is_file()
    ]
    texts = {path.relative_to(folder): path.read_text(encoding="utf-8").splitlines() for path in files}
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as output:
        for number, (question, answers, file) in enumerate(questions):
            places: list[dict[str, Any]] = [
                {"path": str(path), "lines": [line, line]}
                for path, lines in texts.items()
                for line, text in enumerate(lines, 1)
                if str(path).endswith(file) and any(answer in text for answer in answers)
            ]
            assert places, question
            category = "in MEMORY.md" if any("MEMORY.md" in place["path"] for place in places) else "elsewhere"
            fields = {"id": f"{folder.name}-{number}", "query": question, "relevant": places, "category": category}
            output.write(json.dumps(fields, ensure_ascii=False) + "\n")


def write_sample(folder: Path) -> None:
    """Write the sample workspace with its questions."""
    shutil.copytree(REPOSITORY / "deploy/sample-workspace", folder / "workspace", dirs_exist_ok=True)
    lines = (_TEXTS / "sample.txt").read_text(encoding="utf-8").splitlines()
    parts = [line.split("|", 2) for line in lines]
    write_queries(folder, [(question, [answer], path) for question, path, answer in parts])


def write_echoes(source: Path, folder: Path, *, apart: bool) -> None:
    """Copy a set, and add the sessions that ask its questions again and get no answer."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    by_scope = defaultdict[str, list[str]](list)
    for line in (source / "queries.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        by_scope[fields.get("scope", "")].append(fields["query"])
    for scope, questions in by_scope.items():
        place = folder / (scope if scope.startswith("sessions/") else "sessions")
        turns = [(question, _UNKNOWN[is_cjk(question)]) for question in questions]
        for day in _LATER:
            for name, part in [(f"-{at}", [turn]) for at, turn in enumerate(turns)] if apart else [("", turns)]:
                write_session(place / f"echo-{day}{name}.jsonl", day, part)


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Write the sets that the command names."""
    parser = options(__doc__)
    parser.add_argument("kind", choices=("facts", "echoes"))
    parser.add_argument("sets", type=Path, nargs="*", metavar="SET")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--remarks", action="store_true")
    arguments = parser.parse_args()
    for source in arguments.sets:
        write_echoes(source, arguments.directory / f"{source.name}_echoes", apart=arguments.apart)
    for name in _FACTS if arguments.kind == "facts" else ():
        folder = arguments.directory / f"facts_{name.replace('-', '_')}"
        for suffix, outdated in (("", False), ("_outdated", True)):
            write_facts(name, folder.with_name(folder.name + suffix), outdated=outdated, remarks=arguments.remarks)
    if arguments.kind == "facts":
        write_sample(arguments.directory / "sample")


if __name__ == "__main__":
    main()
