"""Words, pairs and dates that the full-text index holds and that it is asked for."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.chunking.dates import dates_in
from memory.chunking.segmenting import FTS5_TOKENIZER, MAX_QUERY_TERMS, index_text, match_terms, query_terms
from memory.chunking.stop_words import is_english
from tests.examples import examples


class Index:
    """A real FTS5 table with the tokenizer that the product uses."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.execute(f"CREATE VIRTUAL TABLE notes USING fts5(body, content='', tokenize='{FTS5_TOKENIZER}')")
        self.count = 0

    def add(self, *texts: str) -> None:
        for text in texts:
            self.count += 1
            self.connection.execute("INSERT INTO notes(rowid, body) VALUES (?, ?)", (self.count, index_text(text)))

    def find(self, query: str) -> list[int]:
        terms = match_terms(query)
        if not terms:
            return []
        found = " OR ".join(terms.values())
        rows = self.connection.execute("SELECT rowid FROM notes WHERE notes MATCH ? ORDER BY rank", (found,))
        return [row[0] for row in rows]


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    yield made
    made.connection.close()


_NOTES = {
    "今天我们讨论了数据库迁移的问题": ["迁移", "数据库迁移", "题"],
    "缓存命中率下降": ["命"],
    "用Python写脚本": ["python", "脚本"],
    "ｶﾀｶﾅの設定": ["カタカナ"],
    "ＯＰＥＮ　ＧＡＴＥ": ["open gate"],
    "𠀀𠀁𠀂 is rare": ["𠀁𠀂"],
    "서울에서 만났다": ["서울"],
    "Café Olé": ["cafe"],
    "the deployments were rolled back": ["deployment"],
    "see src/gateway/retry.ts:12": ["src/gateway/retry.ts:12", "retry"],
    "ticket OPS-4711 is closed": ["OPS-4711"],
    "call openReader() first": ["reader", "openreader"],
    "written in C++ and Go": ["C++"],
    "rewritten in C#": ["c#"],
    "Caroline's birthday": ["what is caroline's plan?"],
    "हिन्दी में नोट": ["हिन्दी", "हिंदी"],
    "বাংলা ভাষায় লেখা": ["ভাষায়"],
    "Straße İZMİR ılık": ["strasse", "izmir", "ilik"],
    "ёлка на ΟΔΌΣ": ["елка", "οδός"],
    "قَرَأْتُ والكتـاب إلى آخره": ["كتاب", "الكتاب", "قرات", "اخره"],
    "mật khẩu ở đây": ["mật khẩu", "mat khau"],
    "می\u200cخواهم یک": ["میخواهم", "يك"],
    "וּבַבַּיִת": ["בית", "הבית"],
    "เมื่อวานเราประชุมทีมเรื่องฐานข้อมูล": ["ประชุม", "ฐานข้อมูล", "ทีม"],
    "วันนี้ดื่มน้ำส้มคั้น": ["น้ำส้ม", "นํ้าส้ม"],
    "วันนี้ดื่มน้ําส้มคั้น": ["น้ำ"],
    "ใช้Pythonเขียนสคริปต์": ["python", "สคริปต์"],
    "ມື້ວານພວກເຮົາປະຊຸມກັນ": ["ປະຊຸມ"],
    "ຢາກດື່ມນ້ຳໝາກກ້ຽງ": ["ນ້ຳ"],
    "មុនពេលប្រជុំក្រុមយើង": ["ប្រជុំ"],
    "ប្រជុំ\u200bក្រុម\u200bយើង": ["ប្រជុំក្រុម"],
    "မနေ့ကအစည်းအဝေးလုပ်ခဲ့တယ်": ["အစည်းအဝေး", "လုပ်"],
}


@pytest.mark.parametrize(("note", "query"), [(note, query) for note, queries in _NOTES.items() for query in queries])
def test_a_note_is_found_by_what_it_says(index: Index, note: str, query: str) -> None:
    index.add("nothing of the kind 毫不相干", note)
    assert index.find(query) == [2]


@pytest.mark.parametrize(
    ("notes", "query", "found"),
    [
        pytest.param(
            ["周末去爬山", "网关重启之后恢复正常", "方案：蓝绿部署"],
            "上次我们定下来的部署办法是什么样的呢",
            [3],
            id="a small part of a whole Chinese question",
        ),
        *(
            pytest.param([note], query, [], id=f"a mark makes another word: {note}")
            for note, query in [
                ("เสื่อ", "เสือ"),
                ("ประชุม", "ชุบ"),
                ("น้ำ", "นา"),
                ("किताब", "कतब"),
                ("ប្រជុំ", "រជ"),
                ("အစည်း", "အစာ"),
            ]
        ),
        pytest.param(["vitamin C", "C++ templates"], "C++", [2], id="C++ is not every C"),
        pytest.param(["where is the thing", "gateway"], "what is the gateway", [2], id="no stop words beside a word"),
        pytest.param(["我们的东西", "网关"], "我们的网关", [2], id="nor in Chinese"),
        pytest.param(["to be or not to be", "gateway"], "to be", [1], id="stop words alone are looked for"),
        pytest.param(["gateway", "为什么"], "为什么", [2], id="also in Chinese"),
    ],
)
def test_a_query_finds(index: Index, notes: list[str], query: str, found: list[int]) -> None:
    index.add(*notes)
    assert index.find(query) == found


def test_the_word_itself_ranks_before_its_other_forms_and_a_tone_before_others(index: Index) -> None:
    index.add("Straßenbahnen fahren", "Straßenbahn fährt", "họp ở trường", "hợp ở trường", *["Filler text"] * 8)
    assert index.find("Straßenbahn") == [2, 1]
    assert index.find("hợp") == [4, 3]


@pytest.mark.parametrize(
    ("query", "form"),
    [
        ("where are the deployments", None),
        ("Server deployments", "deplo*"),
        ("dónde están the deployments", "deplo*"),
        ("der Name of the deployments", "deplo*"),
        ("OPS-4711 v2.3", None),
        (f"{'क' * 60}7", "ककककक*"),
        ("город", "горо*"),
        ("городами", "город*"),
        ("والكتابين", "كتاب*"),
        ("किताबों", "किताब*"),
        ("的 ทีม", None),
    ],
)
def test_forms_are_looked_for_unless_a_query_is_plainly_english(query: str, form: str | None) -> None:
    forms = {name for name in match_terms(query) if name.endswith("*")}
    assert form in forms if form else not forms


def test_the_exact_wording_ranks_before_the_same_pairs_elsewhere(index: Index) -> None:
    index.add("数据很多，据库是别的，库迁，迁移", "数据库迁移", *["填充文字"] * 8)
    assert index.find("数据库迁移")[0] == 2


@pytest.mark.parametrize("query", ["", "   ", "?!", '""\'', "\0", "()*^", "-- ++", "。。。", "🙂"])
def test_a_query_without_letters_asks_for_nothing(query: str) -> None:
    assert match_terms(query) == {}


def test_a_pasted_page_is_a_bounded_query(index: Index) -> None:
    index.add("needle")
    page = "needle " + " ".join(f"word{number}x" for number in range(5_000)) + "长" * 5_000
    assert len(query_terms(page)) == MAX_QUERY_TERMS
    assert index.find(page) == [1]


# Mostly signs and words that mean something to FTS5, between any characters at all.
_NASTY = st.lists(
    st.one_of(
        st.sampled_from(
            ['"', "'", "*", "^", "(", ")", "{", "}", ":", "+", "-", ",", "\0", " ", "AND", "OR", "NOT", "NEAR", "body"]
        ),
        st.text(alphabet=st.characters(codec="utf-8"), max_size=6),
        st.text(alphabet="数据库的了𠀀ｶﾞ가각ﷺé", max_size=6),
    ),
    max_size=40,
).map("".join)

_shared = Index()
_shared.add("gateway body AND OR NOT", "数据库的迁移")


@settings(max_examples=examples(50), deadline=None)
@given(_NASTY)
def test_no_query_is_ever_an_operator_or_an_error(query: str) -> None:
    _shared.find(query)


@settings(max_examples=examples(50), deadline=None)
@given(st.text(alphabet=st.sampled_from("数据库迁移方案部署网关缓存𠀀カ한 aB,。"), min_size=1, max_size=40), st.data())
def test_every_pair_of_characters_of_a_run_finds_it(text: str, data: st.DataObject) -> None:
    runs = [run for run in unicodedata.normalize("NFKC", text).replace("。", " ").replace(",", " ").split() if run]
    runs = [run for run in runs if len(run) > 1 and not any(character.isascii() for character in run)]
    if not runs:
        return
    run = data.draw(st.sampled_from(runs))
    start = data.draw(st.integers(0, len(run) - 2))
    index = Index()
    index.add(text)
    assert index.find(run[start : start + 2]) == [1]
    index.connection.close()


@pytest.mark.parametrize(
    ("question", "dates"),
    [
        ("On April 27th, how long did I run?", ["04-27"]),
        ("the 1st of may and 3 Sept.", ["05-01", "09-03"]),
        ("in May 2023, or December, 2024", ["2023-05", "2024-12"]),
        ("April 27, 2023 and 3rd of May 2024", ["2023-04-27", "2024-05-03"]),
        ("2026/01/12, 2026.1.2 and 12.01.2026", ["2026-01-12", "2026-01-02", "2026-01-12"]),
        ("version 1.2.2026.4, 10.0.0.7, 3.6.1, 1/2", []),
        ("2026-11-09", ["2026-11-09"]),
        ("我在4月27号跑了多久", ["04-27"]),
        ("四月二十七日和十二月三十一號", ["04-27", "12-31"]),
        ("2023年十月十日，2024年5月", ["2023-10-10", "2024-05"]),
        ("He may march 45 km; 13月40日", []),
        ("in May we march", []),
    ],
)
def test_dates_are_read_as_notes_are_dated(question: str, dates: list[str]) -> None:
    assert list(dates_in(question)) == dates


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("what did we decide about the retry policy", True),
        ("Wir haben am Freitag die Datenbank in Berlin umgezogen, so war es geplant", False),
        ("Decidimos no usar la cola a partir de marzo", False),
        ("retry policy backoff", False),
        ("", False),
    ],
)
def test_english_is_told_by_its_stop_words(text: str, english: bool):
    assert is_english(text) is english


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("waar hebben we de reservesleutel neergelegd", "reservesleutel neergelegd"),
        ("vad är det för lösenord som routern har", "lösenord routern"),
        ("gdzie jest zapasowy klucz do piwnicy", "zapasowy klucz piwnicy"),
        ("kde je náhradní klíč od sklepa", "náhradní klíč sklepa"),
        ("hangi anahtar kimin", "anahtar"),
        ("câte chei avem și unde sunt ele", "chei avem și sunt ele"),
        ("chìa khóa của tầng hầm ở đâu", "chìa khóa tầng hầm"),
        ("di mana kunci yang baru itu", "kunci baru"),
        ("де лежить запасний ключ і який він", "лежить запасний ключ"),
        ("איפה המפתח של המרתף", "המפתח המרתף"),
        ("کلید یدکی انبار کجا است", "کلید یدکی انبار"),
        ("أين المفتاح الاحتياطي", "المفتاح الاحتياطي"),
        ("πόσο βρέχει και πού", "βρέχει και"),
        ("चाबी किसने रखी", "चाबी रखी"),
        ("womit wurde der Motor gereinigt", "Motor gereinigt"),
    ],
)
def test_a_question_is_asked_without_the_stop_words_of_its_language(query: str, words: str):
    assert [term.text for term in query_terms(query)] == words.split()


def test_a_thai_question_word_is_not_looked_for(index: Index):
    index.add("อยู่ที่ไหน", "กุญแจสำรอง")
    assert index.find("กุญแจที่ไหน") == [2]


@pytest.mark.parametrize(
    "query",
    [
        *(
            "men want one open door",
            "pet design ideas",
            "sent till sedan",
            "Jim Tom Sam Pan",
            "vitamin K F",
            "op met af",
        ),
        *("far god hit", "sale Yang gallery", "may take ten", "dig dong lama"),
    ],
)
def test_an_english_query_keeps_words_that_are_stop_words_elsewhere(query: str):
    assert [term.text for term in query_terms(query)] == query.split()
