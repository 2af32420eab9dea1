"""Answers are kept for exactly the revision of the index that they were found in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from memory.embedding.providers.stub import StubProvider
from memory.index.file_generation_writer import FileGenerationWriter
from memory.index.fingerprint import Fingerprint
from memory.search.answers import AnswerCache, CachedAnswer, Question, question_of
from memory.search.manager import SearchManager
from memory.search.ranking.ranker import SearchParameters
from memory.search.resources import SearchResources
from memory.search.retrieval import retrieve
from memory.store.options import StoreOptions
from memory.store.sqlite.vectors import VectorShelf
from memory.store.writer import DocumentDelete, Store
from schemas.errors import Transient
from schemas.search import SearchAnswer, SearchRequest, SearchResult
from schemas.settings import Hybrid, Settings, TemporalDecay
from tests.examples import examples
from tests.storing import document, key
from tests.written_index import searching, write_index

PROVIDER = StubProvider()
WORDS = ["gateway", "basalt", "dentist", "friday", "配置", "网关", "FP-131", "port"]
PLACES = [key("MEMORY.md"), key("memory/a.md"), key("memory/2026-11-20.md"), key("sessions/a.jsonl", "sessions")]
GROUP = "agent:main:telegram:group:42"


def write(store: Store, place: int, texts: list[str], *, vectors: bool = True) -> None:
    """Exchange a document."""
    name = PLACES[place]
    if store.file(name) is not None:
        store.write([DocumentDelete(name, store.revision(name))])
    embeddings = list(PROVIDER.embed_documents(texts).vectors) if vectors and texts else []
    assert store.write([document(name, *texts, revision=store.revision(name), vectors=embeddings)]) == ["committed"]


def resources_of(settings: Settings, answers: AnswerCache) -> SearchResources:
    made = SearchResources(settings, model_wait_seconds=5)
    made.answers = answers
    # From blocks and from memory the last digit of a score may differ.
    made.shelf = VectorShelf(max_bytes=0)
    return made


def without_time(answer: SearchAnswer) -> SearchAnswer:
    return answer.model_copy(update={"took_ms": 0.0})


class CachedAnswersMachine(RuleBasedStateMachine):
    """Two managers of one agent: one keeps answers, one keeps none. They may not differ, whatever is committed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        settings = Settings.model_validate(
            {"home": self.folder, "agents": [{"id": "main", "workspace": self.folder / "w", "provider": "stub"}]}
        )
        self.writer = FileGenerationWriter(settings.indexes_path / "main", StoreOptions())
        (self.store,) = self.writer.open_writer(Fingerprint("0", "{}"))
        self.generation = 0
        # Room for a few answers only.
        self.both = [resources_of(settings, AnswerCache(most=most)) for most in (8, 0)]
        self.managers = [SearchManager(settings, settings.agents[0], resources=one) for one in self.both]

    def teardown(self) -> None:
        for manager, resources in zip(self.managers, self.both, strict=True):
            manager.close()
            resources.close()
        self.writer.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), min_size=4, max_size=4))
    def begin(self, texts: list[list[str]]) -> None:
        for place, words in enumerate(texts):
            write(self.store, place, [" ".join(words)])

    @rule(
        place=st.integers(0, len(PLACES) - 1),
        texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), max_size=3),
        vectors=st.booleans(),
    )
    def edit(self, place: int, texts: list[list[str]], vectors: bool) -> None:
        write(self.store, place, [" ".join(words) for words in texts], vectors=vectors)

    @rule(place=st.integers(0, len(PLACES) - 1))
    def delete(self, place: int) -> None:
        self.store.write([DocumentDelete(PLACES[place], self.store.revision(PLACES[place]))])

    @rule()
    def fill_vectors(self) -> None:
        waiting = self.store.pending_hashes(2)
        if waiting:
            rows = self.store.chunk_rows(list(waiting))
            embeddings = PROVIDER.embed_documents([rows[number].text for number in waiting]).vectors
            self.store.write_vectors(
                {number: (waiting[number], vector) for number, vector in zip(waiting, embeddings, strict=True)}
            )

    @rule(old=st.sampled_from(PLACES[:3]), new=st.sampled_from(PLACES[:3]))
    def rename(self, old, new) -> None:
        self.store.rename_document(old, new)

    @rule(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))
    def flip_to_a_new_generation(self, words: list[str]) -> None:
        """As many commits as the old one may have had: the number alone does not tell them apart."""
        self.generation += 1
        self.writer.open_writer(Fingerprint(str(self.generation), "{}"))
        target = self.writer.open_stores()[-1]
        for _ in range(self.generation):
            write(target, 0, [" ".join(words)])
        assert self.writer.complete(str(self.generation))
        (self.store,) = self.writer.open_writer(Fingerprint(str(self.generation), "{}"))

    @rule(
        words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=2),
        max_results=st.sampled_from([None, 1, 3]),
        min_score=st.sampled_from([None, 0.0, 0.9]),
        sources=st.sampled_from([None, ("memory",), ("sessions",)]),
        session_key=st.sampled_from([None, GROUP]),
    )
    def search(self, words, max_results, min_score, sources, session_key) -> None:
        request = SearchRequest(
            query=" ".join(words),
            max_results=max_results,
            min_score=min_score,
            sources=sources,
            session_key=session_key,
        )
        keeping, keeping_none = self.managers
        expected = without_time(keeping_none.search(request))
        assert without_time(keeping.search(request)) == expected
        before = self.both[0].answers.hits
        assert without_time(keeping.search(request)) == expected
        # What was compared was a kept answer.
        assert self.both[0].answers.hits == before + 1
        assert self.both[1].answers.hits == 0


TestCachedAnswers = CachedAnswersMachine.TestCase
TestCachedAnswers.settings = hypothesis_settings(max_examples=examples(15), stateful_step_count=30, deadline=None)


@pytest.fixture
def notes(settings: Settings, workspace: Path) -> Path:
    (workspace / "MEMORY.md").write_text("The gateway is called Basalt.\n", "utf-8")
    (workspace / "memory" / "friday.md").write_text("The dentist appointment moved to nine.\n", "utf-8")
    write_index(settings).close()
    return workspace


@pytest.fixture
def resources(settings: Settings) -> Iterator[SearchResources]:
    made = SearchResources(settings, model_wait_seconds=5)
    yield made
    made.close()


def test_a_degraded_answer_is_not_kept(settings: Settings, notes: Path, monkeypatch):
    def down(self, text):
        raise Transient("connection refused")

    monkeypatch.setattr(StubProvider, "embed_query", down)
    with searching(settings) as manager:
        for _ in range(2):
            assert manager.search(SearchRequest(query="dentist")).degraded
        assert (manager.resources.answers.hits, manager.resources.answers.kept_bytes) == (0, 0)


def question_about(query: str = "q") -> Question:
    hybrid = Hybrid()
    parameters = SearchParameters(query=query, max_results=6, min_score=0.35, sources=("memory",), hybrid=hybrid)
    question = question_of("main", parameters, max_snippet_chars=700, embedding=("stub", "m"))
    assert question is not None
    return question


def answer(text: str) -> CachedAnswer:
    result = SearchResult(path="a.md", source="memory", start_line=1, end_line=1, score=0.5, snippet=text)
    return CachedAnswer(((result,),), "keyword")


def test_answers_that_age_are_not_kept():
    hybrid = Hybrid(temporal_decay=TemporalDecay(enabled=True, half_life_days=1))
    parameters = SearchParameters(query="q", max_results=6, min_score=0.35, sources=("memory",), hybrid=hybrid)
    assert question_of("main", parameters, max_snippet_chars=700, embedding=None) is None


def test_an_answer_is_kept_for_its_day_and_its_limits_of_time(
    settings: Settings, resources: SearchResources, notes: Path
):
    write_index(settings).close()
    now = [1_000_000_000.0]
    manager = SearchManager(settings, settings.agents[0], resources=resources, clock=lambda: now[0])
    hits = []
    for seconds, since in ((0, None), (60, None), (60, "7d"), (0, "7d"), (0, "yesterday"), (86_400, None), (0, None)):
        now[0] += seconds
        assert not manager.search(SearchRequest(query="yesterday", since=since, timezone="UTC")).error
        hits.append(resources.answers.hits)
    assert hits == [0, 1, 1, 2, 2, 2, 3]
    manager.close()


def test_the_answers_used_longest_ago_make_room():
    cache = AnswerCache(most=2)
    questions = [question_about(f"q{number}") for number in range(3)]
    for question in questions[:2]:
        cache.put(question, 1, answer("x"))
    assert cache.get(questions[0], 1)
    cache.put(questions[2], 1, answer("x" * 1_000))
    assert [cache.knows(question) for question in questions] == [True, False, True]
    assert 2_000 < cache.kept_bytes < 10_000


def test_a_commit_while_a_search_reads_keeps_its_answer_from_being_kept(
    settings: Settings, resources: SearchResources, notes: Path, monkeypatch
):
    manager = SearchManager(settings, settings.agents[0], resources=resources)
    (notes / "memory" / "zoo.md").write_text("A zebra in the zoo.\n", "utf-8")

    def slowly(*arguments):
        retrieval = retrieve(*arguments)
        write_index(settings).close()
        return retrieval

    monkeypatch.setattr("memory.search.manager.retrieve", slowly)
    assert manager.search(SearchRequest(query="zebra")).results == ()
    assert resources.answers.kept_bytes == 0
    monkeypatch.setattr("memory.search.manager.retrieve", retrieve)
    assert [hit.path for hit in manager.search(SearchRequest(query="zebra")).results] == ["memory/zoo.md"]
    assert resources.answers.hits == 0
    manager.close()


def test_agents_settings_and_providers_never_share_an_answer(
    settings: Settings, resources: SearchResources, notes: Path
):
    agent = settings.agents[0]
    limits = agent.limits.model_copy(update={"max_snippet_chars": 40})
    weighted = agent.query.model_copy(update={"hybrid": Hybrid(fusion="weighted")})
    others = [
        agent,
        agent.model_copy(update={"limits": limits}),
        agent.model_copy(update={"query": weighted}),
        agent.model_copy(update={"provider": "none"}),
    ]
    for other in others:
        manager = SearchManager(settings, other, resources=resources)
        manager.search(SearchRequest(query="dentist appointment"))
        manager.close()
    assert resources.answers.hits == 0
