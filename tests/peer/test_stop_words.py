"""Words that say nothing are dropped from a query, in ten languages; words that say something never are."""

from __future__ import annotations

import pytest

from memory.chunking.segmenting import query_terms
from memory.search.ranking.query import sought


def words(query: str) -> list[str]:
    """The words that a query is searched for, as they were typed."""
    return [term.typed for term in query_terms(query)]


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("ayer hablamos sobre la estrategia de despliegue", ["hablamos", "estrategia", "despliegue"]),
        ("¿qué fue lo que decidimos sobre el despliegue?", ["decidimos", "despliegue"]),
        ("que decidimos ayer sobre el despliegue tambien", ["decidimos", "despliegue"]),
        ("o que nós decidimos sobre o banco de dados", ["decidimos", "banco", "dados"]),
        ("de que falamos com vocês sobre a implantação", ["falamos", "implantação"]),
        ("le but de la réunion avec l'équipe", ["but", "réunion", "équipe"]),
        ("pourquoi nous avons choisi cette base de données", ["choisi", "base", "données"]),
        ("was war die Ursache für den Ausfall", ["Ursache", "Ausfall"]),
        ("wer hat die Migration gemacht und warum", ["Migration", "gemacht"]),
        ("che cosa abbiamo deciso per il gateway", ["deciso", "gateway"]),
        ("perché non abbiamo finito questa migrazione", ["finito", "migrazione"]),
        ("что мы решили об этой базе данных", ["решили", "базе", "данных"]),
        ("هذا هو القرار الذي كان في الاجتماع", ["القرار", "الاجتماع"]),
        ("우리 배포 전략 그리고 누구", ["배포", "전략"]),
        ("それはデプロイの", ["それはデプロイの", "デプ", "プロ", "ロイ"]),
        ("これまで", ["これ", "れま", "まで"]),
        ("之前讨论的方案", ["之前讨论的方案", "前讨", "讨论", "方案"]),
        ("that thing we discussed about things", ["discussed"]),
    ],
)
def test_words_that_say_nothing_are_dropped_in_each_language(query: str, left: list[str]) -> None:
    assert words(query) == left


# Queries, and words of theirs that must be searched for: stop words of other languages, and what a list of stop words
# holds although people look for it.
CONTENT = {
    "die cast parts": "die",
    "war die roles": "war die",
    "the sole of the shoe": "sole",
    "people who come to dinner": "come",
    "main son pour": "main son pour",
    "my son plays chess": "son",
    "car sans font": "car sans font",
    "state of the AI fine print": "state AI fine",
    "MIT man page of vi and dos": "MIT man page vi dos",
    "schöne Ferien für die Kinder und den Hund": "schöne Ferien Kinder Hund",
    "le but de la saison des pluies": "but saison pluies",
    "test of the page number of a system": "test page number system",
    "in welchem Jahr war die Migration": "Jahr Migration",
    "el trabajo de los sábados en la tienda": "trabajo sábados tienda",
    "cuál es el estado del empleo": "estado empleo",
    "o nome do povo e o tempo que ele tem": "nome povo tempo",
    "quel est le mot de la langue avec une force": "mot langue force",
    "il lavoro di questa gente": "lavoro gente",
    "в каком году была жизнь на этой планете": "году жизнь планете",
    "كم عدد سنوات هذه الوكالة في مايو": "سنوات مايو",
    "그리고 우리 아이 전자 시간": "아이 전자 시간",
    "すしの店": "すし",
} | dict.fromkeys(["die", "sole", "come", "main", "as", "test", "Jahr", "trabajo"])


@pytest.mark.parametrize(("query", "kept"), CONTENT.items())
def test_a_word_that_says_something_survives(query: str, kept: str | None) -> None:
    assert set((kept or query).split()) <= set(words(query))


@pytest.mark.parametrize(
    "query",
    [
        "to be or not to be",
        "de la que el",
        "de que para com",
        "le la les des",
        "und der die das",
        "che di per il",
        "и в на что",
        "هذا الذي من في",
        "우리 그리고",
        "それは",
        "の",
        "的",
        "我们",
        "thing",
        "ยัง",
    ],
)
def test_a_query_of_such_words_alone_is_searched_for_them(query: str) -> None:
    assert words(query)
    assert sought(query)
