"""Ranks of known answers: questions asked of an index of the notes and transcripts that hold these.

    python -m tests.benchmarks.bench_questions SET... [--strangers] [--set LINE]... [--home DIR]

SET is a folder with `workspace/` (notes) and/or `sessions/` (transcripts) and `queries.jsonl`: lines of
`{"id", "query", "relevant": [{"path", "lines": [first, last]}], "category"?, "scope"?}`. A result answers a question
when it is of one of these paths and overlaps its lines; with `scope` only results below that path count. `--set`
adds a line of settings (`--set 'query.hybrid.fusion = "weighted"'`). `--home` keeps the indexes for the next run.

Printed for each set and category:

    MRR@10     mean of 1 / place of the first result that answers, 0 beyond the tenth place
    hit@1 @6   share of the questions with an answer among the first results
    lost       share of the questions with an answer among the default number of results that lose it to the default
               `query.min_score`
    nothing    with --strangers: share of the questions of every *other* set (at most 200 each) that get no result
               from this memory; sets with a file or the first part of their name in common are no strangers
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from memory.search.manager import SearchManager, get_search_manager
from recalld.settings.load import load
from schemas.search import SearchRequest, SearchResult
from tests.benchmarks.frame import Home, options
from tests.waiting import wait_until

#: Results asked for, and before a scope is applied.
RESULTS, DEEP = 10, 100
STRANGERS = 200


@dataclass(frozen=True, slots=True)
class Question:
    """One line of `queries.jsonl`."""

    id: str
    text: str
    relevant: tuple[tuple[str, int, int], ...]
    category: str
    scope: str

    def is_answered_by(self, result: SearchResult) -> bool:
        return any(
            result.path == path and result.start_line <= last and result.end_line >= first
            for path, first, last in self.relevant
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """Place of the first answer (from 1, None when it is not found), and whether `min_score` keeps it."""

    category: str
    place: int | None
    kept: bool


class QuestionSet:
    """A folder with questions, and the index of what is beside them."""

    def __init__(self, folder: Path, *, home: Path, settings: list[str]) -> None:
        self.name = folder.name
        self._settings = settings
        self._folder = folder
        self._home = home / folder.name
        self.questions = [_question(line) for line in (folder / "queries.jsonl").open(encoding="utf-8") if line.strip()]

    def is_stranger_to(self, other: QuestionSet) -> bool:
        """Return True if no answer to these questions is to be expected there."""
        if self.name.partition("_")[0] == other.name.partition("_")[0]:
            return False
        return not {path for q in self.questions for path, _, _ in q.relevant} & {
            path for q in other.questions for path, _, _ in q.relevant
        }

    @contextmanager
    def memory(self) -> Iterator[SearchManager]:
        """The manager of the set's index, which is brought up to date first."""
        workspace, sessions = self._folder / "workspace", self._folder / "sessions"
        if not workspace.is_dir():
            workspace = self._home / "no-notes"
            workspace.mkdir(parents=True, exist_ok=True)
        lines = [*self._settings, "[[agents]]", 'id = "main"', f"workspace = {json.dumps(str(workspace.resolve()))}"]
        if sessions.is_dir():
            lines.append(f"sessions = [{json.dumps(str(sessions.resolve()))}]")
        home = Home(self._home, "\n".join(lines) + "\n")
        home.run("index")
        manager, error = get_search_manager(load(config=str(home.config), home=str(home.path)).settings, "main")
        assert manager is not None, error
        ready = SearchRequest(query="is the model there?", max_results=1)
        try:
            wait_until(lambda: not manager.search(ready).degraded, timeout=60)
            yield manager
        finally:
            manager.close()


def main() -> None:
    """Ask every set, print a table."""
    parser = options(__doc__)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="LINE")
    parser.add_argument("--strangers", action="store_true")
    parser.add_argument("--home", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        home = arguments.home or Path(folder)
        sets = [QuestionSet(path, home=home, settings=arguments.settings) for path in arguments.sets]
        print("| questions | | MRR@10 | hit@1 | hit@6 | lost |" + (" nothing |" if arguments.strangers else ""))
        print("|---|---|---|---|---|---|" + ("---|" if arguments.strangers else ""))
        for questions in sets:
            with questions.memory() as memory:
                outcomes = list(ask(questions, memory))
                strangers = [other for other in sets if other.is_stranger_to(questions)] if arguments.strangers else []
                shares = [(other.name, share_of_nothing(other, memory)) for other in strangers]
            show(questions.name, outcomes, shares)


def ask(questions: QuestionSet, memory: SearchManager) -> Iterator[Outcome]:
    """Ask each question for its best results, whatever their score, and as a user would."""
    for question in questions.questions:
        wanted = DEEP if question.scope else RESULTS
        deep = memory.search(SearchRequest(query=question.text, max_results=wanted, min_score=0.0, wait_ms=0)).results
        within = [result for result in deep if result.path.startswith(question.scope)]
        place = next((at for at, result in enumerate(within, 1) if question.is_answered_by(result)), None)
        shallow = memory.search(SearchRequest(query=question.text, min_score=0.0, wait_ms=0)).results
        usual = memory.search(SearchRequest(query=question.text, wait_ms=0)).results
        had = any(map(question.is_answered_by, shallow))
        yield Outcome(question.category, place, kept=not had or any(map(question.is_answered_by, usual)))


def share_of_nothing(strangers: QuestionSet, memory: SearchManager) -> float:
    """Share of (some of) the questions that this memory, which knows nothing of them, says nothing to."""
    asked = strangers.questions
    if len(asked) > STRANGERS:
        asked = random.Random(7).sample(asked, STRANGERS)
    return statistics.fmean(
        not memory.search(SearchRequest(query=question.text, wait_ms=0)).results for question in asked
    )


def show(name: str, outcomes: Sequence[Outcome], shares: Sequence[tuple[str, float]]) -> None:
    """Print the rows of a set: all its questions, and each category if there are several."""
    by_category: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_category[outcome.category].append(outcome)
    nothing = f" {min(share for _, share in shares):.2f} |" if shares else ""
    print(f"| {name} | {len(outcomes)} | {_figures(outcomes)} |{nothing}", flush=True)
    for category, some in sorted(by_category.items()) if len(by_category) > 1 else ():
        print(f"| {name}: {category} | {len(some)} | {_figures(some)} |" + (" |" if shares else ""))
    for other, share in shares:
        print(f"  {other} asked of {name}: {share:.3f} get nothing", file=sys.stderr)


def _figures(outcomes: Sequence[Outcome]) -> str:
    mean, places = statistics.fmean, [outcome.place or 99 for outcome in outcomes]
    mrr = mean(1 / place if place <= 10 else 0.0 for place in places)
    first, among_six = mean(place == 1 for place in places), mean(place <= 6 for place in places)
    return f"{mrr:.3f} | {first:.3f} | {among_six:.3f} | {mean(not outcome.kept for outcome in outcomes):.3f}"


def _question(line: str) -> Question:
    fields = json.loads(line)
    return Question(
        id=fields["id"],
        text=fields["query"],
        relevant=tuple(
            (item["path"].removeprefix("workspace/"), item["lines"][0], item["lines"][1]) for item in fields["relevant"]
        ),
        category=str(fields.get("category", "")),
        scope=fields.get("scope", "").removeprefix("workspace/"),
    )


if __name__ == "__main__":
    main()
