"""Stop words. Queries drop them; the index keeps them.

English and Chinese lists are our own: the English list of the package `stop-words` includes `system`, `test` and
`page`, and its Chinese list has no pairs of characters. The other lists are the package's, apart from `_OWN_LISTS`.
Words in Latin letters count as English unless several of them show that the query is in another language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: English function words, lower case, and what an apostrophe leaves behind ("what's" -> "s").
ENGLISH_STOP_WORDS = _words(
    """
    a about above after again against all also am an and any are as at be because been before being below
    between both but by can cannot could d did do does doing don down during each either else etc few for
    from further get got had has have having he her here hers herself him himself his how i if in into is it
    its itself just ll let m me might more most must my myself no nor not now of off on once only or other
    ought our ours ourselves out over own please re s same shall she should so some such t than that the
    their theirs them themselves then there these they thing things this those through to too under until up
    upon us ve very was we were what when where whether which while who whom whose why will with would you your
    yours yourself yourselves
    """
)

#: Share of unmistakable English stop words from which a text is English, and the characters that tell it.
_ENGLISH_SHARE, _SAMPLE = 0.2, 600

#: Share of these up to which a text may be in another language, which writes some of them, too.
_FOREIGN_SHARE = 0.03

_WORD = re.compile("[a-z]+")

#: Characters that are particles everywhere in a question: a bigram with one of them is a stop word.
CHINESE_STOP_CHARACTERS = frozenset("的了吗吧呢啊呀嘛么麼嗎")

#: Pronouns, question words and fillers of two characters, simplified and traditional; pairs of Thai question words.
CHINESE_STOP_BIGRAMS = _words(
    """
    什么 什麼 怎么 怎麼 怎样 怎樣 如何 为何 為何 为什 為什 哪里 哪裡 哪裏 哪儿 哪些 哪个 哪個 哪一 多少 几个 幾個
    是否 有没 有沒 没有 沒有 可以 我们 我們 你们 你們 他们 他們 她们 她們 它们 它們 这个 這個 那个 那個 这些 這些
    那些 这样 這樣 那样 那樣 一个 一個 一下 一些 以及 或者 还是 還是 因为 因為 所以 但是 如果 请问 請問 告诉 告訴
    关于 關於 对于 對於 其中 就是 不是 是什 是怎 是哪 是谁 是誰 在哪 有什 有哪 谁是 誰是 何时 何時 之前
    ที่ไห ไหน เมื่อ อไห ไหร่ อไร อใด งไร งไง เท่าไห เท่าไร เท่าใด อะไร ใคร ทําไม
    """
)

#: Languages in Latin letters, by the package's names.
_LATIN = _words(
    "spanish portuguese french german italian dutch swedish polish czech romanian turkish vietnamese indonesian"
)

#: Languages in other letters, by the letters that tell them; "" for a script of one language.
_OTHER = {"russian": "", "arabic": "", "greek": "", "hebrew": "", "hindi": "", "ukrainian": "іїєґ", "persian": "پچژگکی"}

#: Languages whose list is ours alone. The package's are of ancient Greek, in another alphabet for Turkish, without the
#: accents of Romanian and the question words of Hindi; most words of Persian and Vietnamese have a meaning.
_OWN_LISTS = ("greek", "hindi", "persian", "romanian", "turkish", "vietnamese")

#: Those lists, and question words that the package's lists lack.
_FURTHER_WORDS = {
    "arabic": "ماذا متى أين اين كيف كم لماذا هل أي أية اي اية لمن بماذا مما",
    "czech": "který jaký jaká jaké jakým kterého kterém odkud čí",
    "dutch": "waar wanneer welke welk waarom hoeveel waarvoor waarin waarmee",
    "german": "wofür womit wodurch wieviel wieviele viele wem wen wessen worauf woran worin",
    "greek": "πού πώς ποιος ποια ποιο ποιοι ποιες ποιων ποιους ποιον τι πόσο πόσα πόσοι πόσες πότε γιατί",
    "hebrew": "כמה איזו אילו",
    "hindi": "क्या कब कहाँ कहां कैसे क्यों कितना कितने कितनी किस किसने किसके किसकी किसका किसको कौन कौनसा",
    "persian": """از به در با بر برای تا که این آن و یا هم را است بود شد شده شود باشد چه چی چرا چطور چگونه چند چقدر کجا
        کجاست کدام کی کیست چیست ما من تو او شما آنها خود اگر اما ولی هر هیچ یک کرد کرده کند دارد درباره""",
    "polish": "jaka jakim jakiego czyj",
    "romanian": "ce cine unde când cum cât câtă câte câți care căror cărui",
    "turkish": "ne neden nerede nereden nereye nasıl niçin kaç kim kimin kimdir hangi hangisi nedir neydi mi mı mu mü",
    "ukrainian": "яке якому якій якою яким яких якими звідки чий чим",
    "vietnamese": """là của và có các những một cho trong được với này đó khi không thì mà ở ra vào như đã sẽ đang
        cũng nào gì ai đâu bao nhiêu mấy tại sao vì bởi từ đến hay hoặc nhưng về theo bị tôi bạn rằng""",
}

#: Words of its lists with a meaning of their own: nouns, adjectives, verbs, months.
_CONTENT_WORDS = _words(
    """
    cuenta ejemplo emplean emplear empleo estado estados fuerza lugar manera momento tiempo total trabaja trabajamos
    trabajan trabajar trabajo trabajas trabajais valor verdad verdadera verdadero caminho cara comprido corrente
    desligado direita fim horas iniciar inicio ligado maioria maiorias nome povo tempo tentar tipo trabalhar trabalho
    verdade verdadeiro chose choses droite essai force mine mot nom parole passé personne personnes pièce plein point
    sujet valeur voie état étée étés été comprare consecutivi consecutivo fine gente lavoro persone важная важное
    важные важный год года году день жизнь занят занята занято заняты имя лет люди миллионов мира процентов прекрасно
    спасибо сказать человек время времени برس زيارة سنة سنوات شخصا صباح عام عاما قوة لقاء للامم مايو ايار مساء مليار
    مليون وكالة الوقت اطار 구토하다 두번째로 시각 시간 아이 자기집 전자 첫번째로 토하다 beslut dag dagar dagarna
    dagen höger vänster viktig viktigt nowe pan roku sposób ahoj článek článku články design dnes strana tema tipy
    večer milyon kecil घर वर्ग עז נגר важливий відсотків дякую життя ім'я люди людина миру мільйонів прекрасно рік
    року років році сказав сказати спасибі час часу чудово
    """
)

#: Words of the Latin lists that are also English ones, or names: none of them tells the language of a query.
_ENGLISH_TOO = _words(
    """
    ad agora ai al amen amp ante as ate aura bene bin bis ca car chose circa com come comment con cosa dal dan dans dar
    dell dice die dies do dos dove due er era est ex fare fez fin fine font for force ha has hat haut hay he ho il im
    in io la largo ma man mayor me mia mine mit modo na nos nove num nun ob on or ora os otto par parte pas pa passe
    pendant per personnes piece plus point pour primo pro qua salvo sans se sea sei ser sin so sob sola solo son stare
    state sub sue tempo ti ton total tout un usa va valor van varias ver versus via vi vs war was weg will b f h k p r u
    v w z af ale ar av biz cac care dig dong door far god hit ji jim kim lama may men met min nah ok one op pet po pri
    sale sam sat sedan sent take ten till tim tobe tom ul vice want www yang go dr email ii iii iv
    """
)

#: English stop words that other languages do not have.
_ONLY_ENGLISH = _words("is it of to") | {word for word in ENGLISH_STOP_WORDS - _ENGLISH_TOO if len(word) > len("of")}

#: Number of words that prove that a query is not in English.
_EVIDENT = 2


def stop_words_for(words: Collection[str]) -> frozenset[str]:
    """Return the stop words that apply to a query of these words, all in lower case."""
    distinct = frozenset(words)
    languages = _evident(distinct) if len(distinct - ENGLISH_STOP_WORDS) >= _EVIDENT else []
    stops = frozenset.intersection(*map(stop_words_of, languages)) if languages else ENGLISH_STOP_WORDS
    letters = "".join(distinct)
    foreign = [language for language, signs in _OTHER.items() if not signs or set(signs) & set(letters)]
    return stops if letters.isascii() else stops.union(*map(stop_words_of, foreign))


def is_english(text: str) -> bool:
    """Return True if many of the first words of a text are English stop words; a list of names is of no language."""
    return english_share(text) >= _ENGLISH_SHARE


def english_share(text: str) -> float:
    """Return the share of unmistakable English stop words among the first words of a text."""
    words = _WORD.findall(text[:_SAMPLE].lower())
    return sum(word in _ONLY_ENGLISH for word in words) / max(1, len(words))


def is_evidently_foreign(text: str) -> bool:
    """Return True if the letters or the stop words of a text are not English, and hardly a stop word is."""
    if english_share(text) > _FOREIGN_SHARE:
        return False
    has_foreign_letter = any(character.isalpha() for character in text if not character.isascii())
    return has_foreign_letter or bool(_evident(frozenset(_WORD.findall(text.lower()))))


def is_plainly_english(words: Collection[str]) -> bool:
    """Return True if a query of these words, in lower case, has English stop words and none of another language."""
    distinct = frozenset(words)
    is_english = "".join(distinct).isascii() and not distinct.isdisjoint(_ONLY_ENGLISH)
    return is_english and all(distinct.isdisjoint(_distinctive(language)) for language in _LATIN)


@cache
def stop_words_of(language: str) -> frozenset[str]:
    """Return the stop words of a language of the package, lower case, and as they are typed without accents."""
    from stop_words import get_stop_words  # only here: it reads a file for each language

    listed_words = [] if language in _OWN_LISTS else get_stop_words(language, cache=False)
    words = [*listed_words, *_FURTHER_WORDS.get(language, "").split()]
    listed = {word.strip("\"',").casefold() for word in words} - _CONTENT_WORDS
    return frozenset(listed | {_plain(word) for word in listed if language in _LATIN and not word.isascii()})


@cache
def _distinctive(language: str) -> frozenset[str]:
    """Return the stop words of a language that are not English."""
    return stop_words_of(language) - ENGLISH_STOP_WORDS - _ENGLISH_TOO


def _evident(words: frozenset[str]) -> list[str]:
    """Return the Latin languages that a query is evidently in, several when they share its stop words.

    Stop words that are not English speak for a language. English ones that it does not have speak against it, twice.
    """
    counts = {}
    for language in _LATIN:
        stops = stop_words_of(language)
        own_words = len(words & _distinctive(language))
        if own_words >= _EVIDENT and own_words > 2 * len((words & ENGLISH_STOP_WORDS) - stops):
            counts[language] = len(words & stops)
    return [language for language, count in counts.items() if count == max(counts.values())]


def _plain(word: str) -> str:
    return "".join(letter for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))
