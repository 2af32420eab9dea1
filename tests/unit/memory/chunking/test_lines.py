from __future__ import annotations

from memory.chunking.lines import cut_point, tail_point, weigh


def test_weights_are_eighths_of_tokens() -> None:
    assert [weigh(text) for text in ("", "a", "я", "中", "👍")] == [0, 2, 5, 8, 11]


def test_a_piece_ends_at_a_sentence_before_a_word_before_anything() -> None:
    assert cut_point("One two. Three four", 0, 19, 2 * 15) == len("One two. ")
    assert cut_point("One two Three four", 0, 18, 2 * 15) == len("One two Three ")
    assert cut_point("x" * 20, 0, 20, 2 * 15) == 15


def test_a_sentence_end_in_the_first_half_is_too_early() -> None:
    assert cut_point("A. bcdefghijkl mnopqrstuvwxyz", 0, 29, 2 * 20) == len("A. bcdefghijkl ")


def test_a_piece_counts_what_its_characters_weigh() -> None:
    assert cut_point("中" * 10, 0, 10, 8 * 4) == 4
    assert cut_point("中" * 10, 3, 10, 8 * 4 + 7) == 7


def test_a_combining_mark_stays_with_its_letter() -> None:
    assert cut_point("xxxe\u0301yyy", 0, 8, 2 * 4) == 3


def test_a_run_of_marks_without_end_is_cut_somewhere() -> None:
    text = "e" + "\u0301" * 100
    assert 0 < cut_point(text, 0, len(text), 5 * 20) <= 21


def test_a_tail_starts_at_a_word() -> None:
    assert tail_point("aa bb cc", 0, 8, 2 * 6) == 3
    assert tail_point("aa bb cc", 0, 8, 2 * 5) == 3
    assert tail_point("aa b ccccccc", 0, 12, 2 * 9) == 3
    assert tail_point("aa bb cc", 0, 8, 2 * 20) == 0


def test_a_tail_starts_at_a_sentence_if_one_is_near_its_start() -> None:
    assert tail_point("aaaa bb. cc dd ee ff", 0, 20, 2 * 15) == len("aaaa bb. ")


def test_no_tail_fits_no_room() -> None:
    assert tail_point("中文", 0, 2, 7) == 2
