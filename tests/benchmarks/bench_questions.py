"""Ranks of known answers: questions asked of an index of the notes and transcripts that hold these.

    python -m tests.benchmarks.bench_questions SET... [--with SET] [--keywords] [--bm25] [--strangers]
        [--set LINE]... [--home DIR]

SET is a folder with `workspace/` (notes) and/or `sessions/` (transcripts) and `queries.jsonl`, lines of

    {"id", "query", "relevant": [{"path", "lines": [first, last], "of"?}], "category"?, "scope"?, "exclude"?, "before"?,
     "turns"?: [{"path", "lines"}]}

A result answers a question when it is of a path of `relevant` and overlaps its lines. Entries with the same `of` are
one piece of evidence: either will do. Each `scope` below `sessions/` is a memory of its own; all notes are one memory.
Paths of `exclude`, and those that sort at or after `before`, are left out before the candidates are chosen. `turns` are
the messages that hold the answer. With `--with`, the notes of another set lie in each memory, too, and its questions
are divided among the memories. `--keywords` is a short way to say `--set 'provider = "none"'`, a line of settings;
`--bm25` adds plain BM25 (FTS5) over the same chunks; `--home` keeps the indexes for the next run.

Printed for each set and category; the evidence of `by the assistant` is messages of the assistant alone:

    hit@1 @6   share of the questions with an answer among the first results
    MRR@10     mean of 1 / place of the first result that answers, 0 beyond the tenth place
    cov@10     mean share of the pieces of evidence among the first ten results; all@10: share of questions with all
    turn@6     hit@6 where only `turns` count
    lost       share of the questions whose answer among the default number of results is lost to the default
               `query.min_score`
    nothing    with --strangers: share of the questions of every *other* set (at most 200 each, divided among the
               memories) that get no result: the mean, and the worst pair. Sets with a file or the first part of their
               name in common are no strangers. Name the sets of one language in one run.

To stderr: each pair of strangers, and the median CPU time of a search (the query is embedded) and of its bare scans.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from memory.redaction import ASKING, redactor_for
from memory.search.answers import passages_of
from memory.search.manager import SearchManager, get_search_manager
from memory.search.ranking.query import searched_query
from memory.search.ranking.ranker import SearchParameters
from memory.search.resources import SearchResources
from memory.search.retrieval import MIN_CANDIDATES, QuerySide, retrieve
from memory.store.reader import Vector
from recalld.settings.load import load
from schemas.documents import SESSIONS_SOURCE
from schemas.search import SearchRequest, SearchResult
from tests.benchmarks.frame import Home, options
from tests.waiting import wait_until

RESULTS, STRANGERS = 10, 200

#: English words that plain BM25 does not look for.
_STOP_WORDS = (
    "a an and are as at be been but by can could did do does for from had has have he her him his how i if in into is "
    "it its me my of on or our she should so some than that the their them then there they this to up us was we were "
    "what when where which who whom whose why will with would you your about all also any just more most no not only "
    "other same such too very"
)
_IDEOGRAPHS = re.compile(r"[\u3400-\u9fff]+")

#: Path, first and last line.
Lines: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Question:
    """One line of `queries.jsonl`. `pieces`: evidence, each piece with the places that hold it."""

    text: str
    pieces: tuple[tuple[Lines, ...], ...]
    turns: tuple[Lines, ...]
    categories: tuple[str, ...]
    scope: str
    exclude: frozenset[str]
    before: str

    @property
    def relevant(self) -> tuple[Lines, ...]:
        """Return the places that answer the question."""
        return tuple(place for piece in self.pieces for place in piece)

    def hides(self, path: str) -> bool:
        """Return True for a document that a search must not find."""
        return path in self.exclude or bool(self.before and path >= self.before)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Places of the first answer and of the first of `turns`, from 1; `kept`: `min_score` keeps the answer."""

    question: Question
    place: int | None
    turn: int | None
    coverage: float
    kept: bool | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one scope. `scope` is the prefix of its transcripts' paths in the set."""

    manager: SearchManager
    scope: str

    def path_of(self, source: str, path: str) -> str:
        """Return a document's path in the set."""
        return self.scope + path.removeprefix("sessions/") if source == SESSIONS_SOURCE and self.scope else path

    def places(
        self, question: Question, *, max_results: int | None = None, min_score: float | None = None
    ) -> list[Lines]:
        """Return the results' places, best first."""
        request = SearchRequest(query=question.text, max_results=max_results, min_score=min_score, wait_ms=0)
        hides = question.exclude or question.before
        hits = self._permitted(question, request) if hides else self.manager.search(request).results
        return [(self.path_of(hit.source, hit.path), hit.start_line, hit.end_line) for hit in hits]

    def _permitted(self, question: Question, request: SearchRequest) -> list[SearchResult]:
        """Search as the manager does, with hidden documents left out before the candidates are chosen."""
        agent, vectors, side = self.manager.agent, self.manager.embedder.vectors, None
        parameters = SearchParameters(
            query=searched_query(request.query, redactor_for(agent, "memory", "sessions", budget=ASKING)).text,
            max_results=request.max_results or agent.query.max_results,
            min_score=agent.query.min_score if request.min_score is None else request.min_score,
            sources=agent.sources,
            hybrid=agent.query.hybrid,
            withheld=lambda _, keys: [key for key in keys if question.hides(self.path_of(key.source, key.path))],
        )
        if vectors is not None:
            side = QuerySide(vectors.provider.identity, vectors.provider.model, self.vector(parameters.query))
        with self.manager.reader.lease() as reader:
            assert reader is not None
            retrieval = retrieve(reader, parameters, side)
            return [hit for hit, *_ in passages_of(retrieval, max_snippet_chars=agent.limits.max_snippet_chars)]

    def vector(self, text: str) -> Vector | None:
        """Return a query's vector; None with keywords only."""
        vectors = self.manager.embedder.vectors
        return vectors.begin(text, seconds=60).result() if vectors is not None else None

    def scan(self, text: str, vector: Vector | None) -> None:
        """Find candidates of both sides, and do nothing with them."""
        with self.manager.reader.lease() as reader:
            assert reader is not None
            reader.search_text(text, MIN_CANDIDATES)
            if vector is not None:
                reader.search_vectors(vector, MIN_CANDIDATES)


class PlainBm25:
    """FTS5 with its own stemmer and ranking over the chunks of a memory."""

    def __init__(self, memory: Memory) -> None:
        with memory.manager.reader.lease() as reader:
            assert reader is not None
            rows = reader.chunk_rows([chunk.id for file in reader.files() for chunk in reader.chunks_of(file.key)])
        self._memory, self._rows = memory, rows
        self._index = apsw.Connection(":memory:")
        self._index.execute("create virtual table texts using fts5(text, tokenize = 'porter unicode61')")
        with self._index:
            insert = "insert into texts (rowid, text) values (?, ?)"
            self._index.executemany(insert, [(id_, " ".join(_terms(rows[id_].text))) for id_ in sorted(rows)])

    def places(self, question: Question) -> list[Lines]:
        """Return the results' places, best first."""
        terms = [term for term in dict.fromkeys(_terms(question.text)) if term not in _STOP_WORDS.split()][:400]
        match = " OR ".join(f'"{term}"' for term in terms) or '""'
        hits = self._index.execute("select rowid from texts where texts match ? order by rank", (match,))
        rows = (self._rows[id_] for (id_,) in hits)
        places = ((self._memory.path_of(*astuple(row.key)), row.start_line, row.end_line) for row in rows)
        return [place for place in places if not question.hides(place[0])][:RESULTS]


def _terms(text: str) -> list[str]:
    pairs = [run[at : at + 2] for run in _IDEOGRAPHS.findall(text) for at in range(max(1, len(run) - 1))]
    return pairs + re.findall(r"\w+", _IDEOGRAPHS.sub(" ", text.lower()))


class QuestionSet:
    """A folder with questions, and the indexes of what is beside them, perhaps with the notes of another set."""

    def __init__(self, folder: Path, *, home: Path, settings: list[str], notes: QuestionSet | None = None) -> None:
        self.name = folder.name
        self.folder = folder
        self.notes = notes
        self._settings = settings
        self._home = home / (f"{folder.name}+{notes.name}" if notes is not None else folder.name)
        with (folder / "queries.jsonl").open(encoding="utf-8") as lines:
            self.questions = [_question(json.loads(line), folder) for line in lines if line.strip()]

    def is_stranger_to(self, other: QuestionSet) -> bool:
        """Return True if no answer to these questions is to be expected there."""
        if self.name.partition("_")[0] == other.name.partition("_")[0]:
            return False
        paths, other_paths = ({path for q in some.questions for path, _, _ in q.relevant} for some in (self, other))
        return not paths & other_paths

    @contextmanager
    def memories(self) -> Iterator[dict[str, Memory]]:
        """The memory of each scope. Their indexes are brought up to date first."""
        scopes = sorted({question.scope for question in self.questions})
        agents = {re.sub("[^a-z0-9-]+", "-", Path(scope).name.lower()) or "all": scope for scope in scopes}
        lines = [*self._settings, *(line for agent in agents.items() for line in self._agent_lines(*agent))]
        home = Home(self._home, "\n".join(lines) + "\n")
        home.run("index")
        settings = load(config=str(home.config), home=str(home.path)).settings
        with ExitStack() as stack:
            resources = SearchResources(settings)
            stack.callback(resources.close)
            memories = {}
            for agent, scope in agents.items():
                manager, error = get_search_manager(settings, agent, resources=resources)
                assert manager is not None, error
                stack.callback(manager.close)
                memories[scope] = Memory(manager, scope)
            ready = SearchRequest(query="is the model there?", max_results=1)
            wait_until(lambda: not any(m.manager.search(ready).degraded for m in memories.values()), timeout=60)
            yield memories

    def _agent_lines(self, agent: str, scope: str) -> Iterator[str]:
        workspace = (self.notes or self).folder / "workspace"
        if not workspace.is_dir():
            workspace = self._home / "no-notes"
            workspace.mkdir(parents=True, exist_ok=True)
        sessions = self.folder / (scope or "sessions")
        yield from ("[[agents]]", f'id = "{agent}"', f"workspace = {json.dumps(str(workspace.resolve()))}")
        if sessions.is_dir():
            yield f"sessions = [{json.dumps(str(sessions.resolve()))}]"


def main() -> None:
    """Ask every set, print a table."""
    parser = options(__doc__)
    parser.add_argument("sets", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--with", dest="notes", type=Path, metavar="SET")
    parser.add_argument("--keywords", action="store_true")
    parser.add_argument("--bm25", action="store_true")
    parser.add_argument("--strangers", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="LINE")
    parser.add_argument("--home", type=Path)
    arguments = parser.parse_args()
    settings = arguments.settings + ['provider = "none"'] * arguments.keywords
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as folder:
        home = (arguments.home or Path(folder)) / ("keywords" if arguments.keywords else "")
        notes = QuestionSet(arguments.notes, home=home, settings=settings) if arguments.notes else None
        sets = [QuestionSet(path, home=home, settings=settings, notes=notes) for path in arguments.sets]
        print("| questions | | hit@1 | hit@6 | MRR@10 | cov@10 | all@10 | turn@6 | lost | nothing | worst pair |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for questions in sets:
            with questions.memories() as memories:
                strangers = [other for other in sets if other.is_stranger_to(questions)] if arguments.strangers else []
                shares = {other.name: share_of_nothing(other, memories.values()) for other in strangers}
                rows = dict(asked(questions, memories, bm25=arguments.bm25))
            for name, outcomes in rows.items():
                show(name, outcomes, list(shares.values()) if name == questions.name else [])
            for other_name, share in shares.items():
                print(f"  {other_name} asked of {questions.name}: {share:.3f} get nothing", file=sys.stderr)


def asked(questions: QuestionSet, memories: dict[str, Memory], *, bm25: bool) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield the outcomes of a set, those of the set whose notes lie beside it, and those of plain BM25."""
    pairs = [(question, memories[question.scope]) for question in questions.questions]
    name, notes = questions.name, questions.notes
    yield (f"{name} with {notes.name}" if notes is not None else name), _outcomes(name, pairs)
    if notes is not None:
        yield f"{notes.name} with {name}", _outcomes(notes.name, zip(notes.questions, cycle(memories.values())))
    if bm25:
        plain = {memory.scope: PlainBm25(memory) for memory in memories.values()}
        yield f"{name} [bm25]", [_outcome(question, plain[memory.scope].places(question)) for question, memory in pairs]


def _outcomes(name: str, pairs: Iterable[tuple[Question, Memory]]) -> list[Outcome]:
    """Ask each question for its best results, whatever their score, and as a user would."""
    outcomes, times = [], []
    for question, memory in pairs:
        places = memory.places(question, max_results=RESULTS, min_score=0.0)
        shallow = memory.places(question, min_score=0.0)
        vector = memory.vector(question.text)
        begun = time.process_time()
        usual = memory.places(question)
        searched = time.process_time()
        memory.scan(question.text, vector)
        times.append((searched - begun, time.process_time() - searched))
        has_answer = _place_of(question.relevant, shallow) is not None
        kept = not has_answer or _place_of(question.relevant, usual) is not None
        outcomes.append(_outcome(question, places, kept=kept))
    median, floor = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"  {name}: CPU of a search {median:.2f} ms, of its bare scans {floor:.2f} ms", file=sys.stderr, flush=True)
    return outcomes


def _outcome(question: Question, places: Sequence[Lines], *, kept: bool | None = None) -> Outcome:
    best = places[:RESULTS]
    coverage = statistics.fmean(_place_of(piece, best) is not None for piece in question.pieces)
    return Outcome(question, _place_of(question.relevant, best), _place_of(question.turns, best), coverage, kept)


def _place_of(evidence: Sequence[Lines], places: Sequence[Lines]) -> int | None:
    """Return the number of the first place that overlaps a part of the evidence."""
    for number, (path, start, end) in enumerate(places, 1):
        if any(path == there and start <= last and end >= first for there, first, last in evidence):
            return number
    return None


def share_of_nothing(strangers: QuestionSet, memories: Iterable[Memory]) -> float:
    """Share of (some of) the questions that these memories, which know nothing of them, say nothing to."""
    questions = strangers.questions
    if len(questions) > STRANGERS:
        questions = random.Random(7).sample(questions, STRANGERS)
    return statistics.fmean(not memory.places(q) for q, memory in zip(questions, cycle(memories)))


def show(name: str, outcomes: Sequence[Outcome], shares: Sequence[float]) -> None:
    """Print the rows of a set: all its questions, and each category if there are several."""
    by_category: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for category in outcome.question.categories:
            by_category[category].append(outcome)
    nothing = f"{statistics.fmean(shares):.3f} | {min(shares):.3f}" if shares else "|"
    print(f"| {name} | {len(outcomes)} | {_figures(outcomes)} | {nothing} |", flush=True)
    for category, some in sorted(by_category.items()) if len(by_category) > 1 else ():
        print(f"| {name}: {category} | {len(some)} | {_figures(some)} | | |", flush=True)


def _figures(outcomes: Sequence[Outcome]) -> str:
    shares: list[Callable[[Outcome], float | None]] = [
        lambda outcome: outcome.place == 1,
        lambda outcome: (outcome.place or 99) <= 6,
        lambda outcome: 1 / outcome.place if outcome.place else 0.0,
        lambda outcome: outcome.coverage,
        lambda outcome: outcome.coverage == 1,
        lambda outcome: (outcome.turn or 99) <= 6 if outcome.question.turns else None,
        lambda outcome: not outcome.kept if outcome.kept is not None else None,
    ]
    columns = ([share for outcome in outcomes if (share := of(outcome)) is not None] for of in shares)
    return " | ".join(f"{statistics.fmean(column):.3f}" if column else "" for column in columns)


@cache
def _roles(transcript: Path) -> list[str]:
    with transcript.open(encoding="utf-8") as lines:
        return [json.loads(line).get("message", {}).get("role", "") for line in lines]


def _question(fields: dict[str, Any], folder: Path) -> Question:
    pieces: dict[object, list[Lines]] = defaultdict(list)
    for number, entry in enumerate(fields["relevant"]):
        pieces[entry.get("of", f"piece {number}")].append(_lines(entry))
    turns = tuple(map(_lines, fields.get("turns") or ()))
    places = [*turns] or [place for piece in pieces.values() for place in piece]
    files = {path: folder / path for path, _, _ in places if path.endswith(".jsonl")}
    roles = {role for path, first, last in places if path in files for role in _roles(files[path])[first - 1 : last]}
    scope = fields.get("scope", "")
    return Question(
        text=fields["query"],
        pieces=tuple(map(tuple, pieces.values())),
        turns=turns,
        categories=(str(fields.get("category", "")), *(["by the assistant"] if roles == {"assistant"} else [])),
        scope=scope if scope.startswith("sessions/") else "",
        exclude=frozenset(fields.get("exclude") or ()),
        before=fields.get("before") or "",
    )


def _lines(entry: dict[str, Any]) -> Lines:
    return entry["path"].removeprefix("workspace/"), entry["lines"][0], entry["lines"][1]


if __name__ == "__main__":
    main()
