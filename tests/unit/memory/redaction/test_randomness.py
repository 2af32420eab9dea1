"""Whether letters look random, or like words."""

from __future__ import annotations

import random

import pytest

from memory.redaction import redact
from memory.redaction.values import are_random_letters, is_random_key, word_bits
from tests.secret_samples import made


@pytest.mark.parametrize(
    "around",
    [
        ("aws_secret_access_key = ", ""),
        ("AWS_SECRET_ACCESS_KEY=", ""),
        ('"SecretAccessKey": "', '"'),
        ("AccountKey=", ";EndpointSuffix=x"),
    ],
)
@pytest.mark.parametrize("template", ["/{b39}", "{b40}", "/{b85}=="])
def test_no_key_of_five_thousand_is_taken_for_a_path_or_words(around: tuple[str, str], template: str) -> None:
    source = random.Random(9)
    before, after = around
    for _ in range(5000):
        key = made(template, source)
        assert redact(before + key + after) in {
            f"{before}[redacted:{kind}]{after}" for kind in ("key", "secret", "password")
        }, key


@pytest.mark.parametrize("before", ["--password ", "machine h login me password ", "The password is ", "密码是 "])
def test_of_random_letters_99_in_100_are_found(before: str) -> None:
    source = random.Random(10)
    missed = sum(redact(text) == text for text in (before + made("{L12}", source) for _ in range(3000)))
    assert missed <= 30


@pytest.mark.parametrize(
    "words",
    ["getElementById", "PostgreSQL", "OpenAI", "correcthorsebattery", "Geheimschutz", "obligatorio", "zhangsan",
     "SQLAlchemyConnection", "szczegolnie", "DuckDuckGo", "abcdefghijklm", "aaaaaaaaaaaa", "password-reset-flow"],
)  # fmt: skip
def test_words_identifiers_and_names_are_not_random(words: str) -> None:
    assert not are_random_letters(words.encode())


@pytest.mark.parametrize(
    "path",
    ["/etc/ssl/private/ServerKeys/Main2024", "/Users/JohnSmith/Projects/MyApp2/Secrets/Token", "/run/secrets/db",
     "/opt/Keys/3f786850e387550fdab836ed7e6dc881de23001b", "/var/lib/XXXXXXXXXXXXXXXXXXXX/aB"],
)  # fmt: skip
def test_a_path_is_no_key(path: str) -> None:
    assert not is_random_key(path.encode())


def test_every_change_and_every_rare_pair_counts_against_words() -> None:
    assert word_bits(b"there") > word_bits(b"thEre") > word_bits(b"tHeRe")
    assert word_bits(b"there") > 0 > word_bits(b"xqzjv")
    assert word_bits(b"") == word_bits("密码".encode()) == 0
    assert word_bits(b"there/there") == word_bits(b"there there") == 2 * word_bits(b"there")
