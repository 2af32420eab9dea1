"""Words are found in their other forms, in every script with letters, and shown whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.search.manager import SearchManager
from memory.search.ranking.query import sought
from memory.search.ranking.snippets import best_sentence
from schemas.search import SearchRequest, SearchResult
from schemas.settings import Settings
from tests.written_index import searching, with_agent, write_index

#: Script or language: a note, a query with other forms of its words, and the words that are marked.
FORMS = {
    "german": ("Die Verwaltung zieht in die Hauptstraße um.", "Verwaltungen Hauptstrassen", "Verwaltung|Hauptstraße"),
    "turkish": ("Toplantılar ISPARTA okulunda yapıldı.", "Isparta toplantı", "Toplantılar|ISPARTA"),
    "vietnamese": ("Cuộc họp được tổ chức ở trường.", "mật họp trường", "họp|trường"),
    "cyrillic": ("Поездка в крупных городах Сибири, ёлка.", "город елка", "городах|ёлка"),
    "greek": ("Η συνάντηση με τους δασκάλους έγινε.", "δάσκαλος", "δασκάλους"),
    "armenian": ("Մենք ապրում ենք քաղաքներում։", "քաղաքները", "քաղաքներում"),
    "georgian": ("ჩვენ ვცხოვრობთ ქალაქებში.", "ქალაქი", "ქალაქებში"),
    "arabic": ("قَرَأْتُ هٰذَيْنِ الكِتابَيْنِ أمس.", "والكتاب", "الكِتابَيْنِ"),
    "persian": ("او روزنامه\u200cهای تازه را خواند.", "روزنامه", "روزنامه\u200cهای"),
    "hebrew": ("גרנו אז בַּבָּתִּים הישנים.", "הבתים", "בַּבָּתִּים"),
    "hindi": ("उसने नयी किताबों में हिन्दी पढ़ी.", "किताब हिंदी", "किताबों|हिन्दी"),
    "bengali": ("সে বাংলা ভাষায় লেখে.", "ভাষা", "ভাষায়"),
    "tamil": ("அவர்கள் பழைய வீடுகளில் இருந்தனர்.", "வீடுகள்", "வீடுகளில்"),
    "telugu": ("వారు పాత పుస్తకాలలో చదివారు.", "పుస్తకాలు", "పుస్తకాలలో"),
    "amharic": ("በትልልቅ ከተሞች ኖሩ።", "ከተሞችን", "ከተሞች"),
}


@pytest.fixture
def memory(settings: Settings, workspace: Path) -> Iterator[SearchManager]:
    """The index of these notes, without a model."""
    for name, (note, *_) in FORMS.items():
        (workspace / "memory" / f"{name}.md").write_text(f"# {name}\n\n{note}\n", "utf-8")
    by_words = with_agent(settings, provider="none")
    write_index(by_words).close()
    with searching(by_words) as manager:
        yield manager


def marked(result: SearchResult, query: str) -> str:
    sentence = best_sentence(result.snippet, terms=sought(query), columns=200)
    return "|".join(sentence.text[start:end] for start, end in sentence.matches)


@pytest.mark.parametrize("name", FORMS)
def test_a_word_is_found_in_another_form_and_marked_whole(memory: SearchManager, name: str):
    _, query, words = FORMS[name]

    results = memory.search(SearchRequest(query=query)).results

    assert [result.path for result in results] == [f"memory/{name}.md"]
    assert results[0].citation == f"memory/{name}.md#L1-L3"
    assert marked(results[0], query) == words
