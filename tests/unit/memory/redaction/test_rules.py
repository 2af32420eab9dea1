"""Secrets as people have them in their notes and transcripts, and what is like them and is to be found again."""

from __future__ import annotations

import base64
import random
import re

import pytest

from memory.redaction import redact
from tests.daemon import REPOSITORY
from tests.secret_samples import BY_THEIR_LOOK, PASSWORD, PASSWORD_LABELS, WITH_SECRETS, WITHOUT_SECRETS, made, written

_MASK = r"\[redacted:[a-z]+(-[a-z]+)*\]"


@pytest.mark.parametrize("line", WITH_SECRETS)
def test_a_secret_is_masked_and_nothing_else(line: str) -> None:
    for seed in range(20):
        before, secret, after = written(line, random.Random(seed))
        redacted = redact(before + secret + after)
        assert redacted.startswith(before)
        assert redacted.endswith(after)
        assert re.fullmatch(_MASK, redacted[len(before) : len(redacted) - len(after)]), redacted


@pytest.mark.parametrize("language", PASSWORD_LABELS)
def test_a_password_is_masked_after_its_label_in_each_language_of_the_page(language: str) -> None:
    assert re.search(rf"\b{language}\b", (REPOSITORY / "docs" / "privacy.md").read_text("utf-8"))
    label, *others = PASSWORD_LABELS[language]
    for line in (label, label.capitalize(), label.upper(), *others):
        assert redact(line.replace("§", PASSWORD)) == line.replace("§", "[redacted:password]")


@pytest.mark.parametrize("line", WITHOUT_SECRETS)
def test_a_text_without_a_secret_stays_as_it_is(line: str) -> None:
    assert redact(line) == line
    assert redact(f"见上文：\n{line}\n以及下文。\n") == f"见上文：\n{line}\n以及下文。\n"


_WORDS = "abandon ability able about above absent absorb abstract absurd abuse access acid".split()  # noqa: SIM905 - as a wallet shows them


@pytest.mark.parametrize("count", [11, 12, 13, 24, 25])
def test_a_seed_phrase_has_12_or_24_words_on_one_line_or_a_numbered_one_each(count: int) -> None:
    words = (_WORDS * 3)[:count]
    is_phrase = count in {12, 24}
    assert ("abandon" not in redact(f"Seed phrase: {' '.join(words)}\n")) is is_phrase
    lines = "".join(f"{number}. {word}\n" for number, word in enumerate(words, 1))
    redacted = redact(f"Recovery words:\n{lines}")
    assert ("abandon" not in redacted, redacted.count("\n")) == (is_phrase, count + 1)


@pytest.mark.parametrize(
    "codes",
    [
        "1234-5678, 2345-6789, 3456-7890",
        "\n- 8f3a-92bc\n- a1b2-c3d4\n- 11aa-22bb\n",
        "\n1. 12345678\n2. 23456789\n3. 34567890\n",
        "1234 5678\n2345 6789\n3456 7890",
    ],
)
@pytest.mark.parametrize("name", ["Backup codes:", "Recovery codes (GitHub):", "My 2FA codes are"])
def test_every_code_of_a_list_of_backup_codes_is_masked(name: str, codes: str) -> None:
    redacted = redact(f"{name} {codes}\n")
    assert len(re.findall(r"\[redacted:backup-code\]", redacted)) == 3
    assert not re.search(r"[0-9]{4}", redacted)


_AROUND = (
    "“§” 「§」 令牌是§，请保密 \"§\" '§' `§` (§) [§] §. a:§ =§ \t§\r x\\n§\\n <§> |§| é§é https://example.com/?x=§&y=1"
)


@pytest.mark.parametrize("around", _AROUND.split(" "))
@pytest.mark.parametrize("template", BY_THEIR_LOOK)
def test_a_token_is_found_whatever_it_is_glued_to(template: str, around: str) -> None:
    secret = made(template, random.Random(4))
    before, after = around.split("§")
    redacted = redact(before + secret + after)
    assert secret not in redacted
    assert len(secret) - len(PASSWORD) < 8 or secret[-8:] not in redacted
    assert redacted.startswith(before)


def test_the_mask_tells_the_kind() -> None:
    source = random.Random(1)
    for template, kind in {
        "ghp_{A36}": "github-token",
        "sk-ant-api03-{u93}AA": "anthropic-key",
        "sk-proj-{u80}": "openai-key",
        "AIza{u35}": "google-key",
        "AKIA{U16}": "aws-key-id",
        "xoxb-{d12}-{A24}": "slack-token",
    }.items():
        secret = made(template, source)
        assert redact(f"OPENAI_API_KEY={secret}") == f"OPENAI_API_KEY=[redacted:{kind}]"


_LOOKALIKES = (
    "commit §", "sha256:§", "see §.", "build/§/out.txt", "id=§", "cache key: §", '"id": "§"', "版本§已部署", "lib/ab/§",
)  # fmt: skip


def test_identifiers_digests_and_encoded_data_are_never_masked() -> None:
    source = random.Random(3)
    for _ in range(300):
        for size in (7, 12, 32, 40, 64, 128):
            digest = source.randbytes(size).hex()[:size]
            for line in (*_LOOKALIKES, f"at {digest.upper()}" if size == 40 else "§"):
                assert redact(line.replace("§", digest)) == line.replace("§", digest)
        image = f"![x](data:image/png;base64,{base64.b64encode(source.randbytes(300)).decode()})"
        assert redact(image) == image
    certificate = base64.encodebytes(source.randbytes(57 * 3 + 30)).decode()
    assert len(certificate.splitlines()[-1]) == 40
    wrapped = "\n".join(base64.b64encode(source.randbytes(30)).decode() for _ in range(40))
    prose = base64.b64encode("我们今天讨论了数据库迁移的问题".encode()[:30]).decode()
    for text in (certificate, wrapped, prose):
        assert redact(text) == text


KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
_SECRET_KEYS = (
    "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzEXAMPLEKq",
    "Zx4kW9" + "qLmT7vRb2NcYd8HsJgP5fKwQeUaXi3oB1tVnMz"[:34],
)


@pytest.mark.parametrize(
    "text", [f"{KEY_ID} §", f"{KEY_ID}\n§\n", f'["§", "{KEY_ID}"]', f"aws,{KEY_ID},§,eu-west-1",
             "§", "- §", "`§`", '"§",', "it is § for the bucket", "s3 = '§'"],
)  # fmt: skip
def test_a_secret_key_of_aws_is_masked_by_itself_and_with_its_id(text: str) -> None:
    for key in _SECRET_KEYS if KEY_ID in text else _SECRET_KEYS[:1]:
        masked = text.replace(KEY_ID, "[redacted:aws-key-id]").replace("§", "[redacted:aws-secret]")
        assert redact(text.replace("§", key)) == masked


@pytest.mark.parametrize(
    ("before", "template", "after", "most_missed"),
    [
        *((before, template, after, 0) for template in ("/{b39}", "{b40}", "/{b85}==") for before, after in (
            ("aws_secret_access_key = ", ""), ("AWS_SECRET_ACCESS_KEY=", ""), ('"SecretAccessKey": "', '"'),
            ("AccountKey=", ";EndpointSuffix=x"))),
        *((before, "{L12}", "", 30) for before in
          ("--password ", "machine h login me password ", "The password is ", "密码是 ")),
    ],
)  # fmt: skip
def test_of_three_thousand_random_values_after_a_label(
    before: str, template: str, after: str, most_missed: int
) -> None:
    """No key is taken for a path or for words, and at most one in a hundred passwords of letters."""
    source = random.Random(9)
    masked = {f"{before}[redacted:{kind}]{after}" for kind in ("key", "secret", "password")}
    missed = sum(redact(before + made(template, source) + after) not in masked for _ in range(3000))
    assert missed <= most_missed


@pytest.mark.parametrize(("quote", "comma"), [('"', ", "), ('\\"', ", "), ('"', ",\n  ")])
def test_of_a_signed_header_the_proofs_are_masked_however_it_is_written(quote: str, comma: str) -> None:
    proofs = ("dcd98b7102dd2f0e8b11d0f600bfb0c0", "0a4f113b", "6629fae49393a05397450978507c4ef1")
    header = 'Authorization: Digest username="joe", nonce="{}", uri="/a", nc=1, cnonce="{}", response="{}"'
    header = header.replace(", ", comma).replace('"', quote)
    assert redact(header.format(*proofs)) == header.format(*["[redacted:authorization]"] * 3)


def test_the_value_of_a_name_on_the_line_before_is_masked() -> None:
    text = f"- name: DB_PASSWORD\n  value: {PASSWORD}\n- name: TOKENS\n  value: 400\n"
    assert redact(text) == text.replace(PASSWORD, "[redacted:password]")


class TestPrivateKeys:
    BODY = "\n".join(base64.b64encode(random.Random(5).randbytes(48)).decode() for _ in range(6))
    FIRST, LAST = "-----BEGIN RSA PRIV" + "ATE KEY-----", "-----END RSA PRIV" + "ATE KEY-----"

    def test_a_key_keeps_its_first_and_last_line_and_every_line_end(self) -> None:
        text = f"Here:\r\n{self.FIRST}\r\n" + self.BODY.replace("\n", "\r\n") + f"\r\nAbc=\r\n{self.LAST}\r\nand on\r\n"
        masked = "[redacted:private-key]\r\n"
        assert redact(text) == f"Here:\r\n{self.FIRST}\r\n{masked * 7}{self.LAST}\r\nand on\r\n"

    def test_an_unfinished_key_is_masked_to_the_end_of_its_base64(self) -> None:
        text = f"{self.FIRST}\n{self.BODY}\nThat was all I copied.\n"
        assert redact(text) == f"{self.FIRST}\n" + "[redacted:private-key]\n" * 6 + "That was all I copied.\n"
        assert redact(f"{self.FIRST}\n{self.BODY}") == f"{self.FIRST}\n" + "\n".join(["[redacted:private-key]"] * 6)

    @pytest.mark.parametrize("end", ["\\n", "\\\\n", " "])
    def test_a_key_in_one_line_is_masked(self, end: str) -> None:
        text = f'"key": "{self.FIRST}{end}{self.BODY.replace(chr(10), end)}{end}{self.LAST}{end}",'
        redacted = redact(text)
        assert redacted.replace(" [", "[").replace("] ", "]") == (
            f'"key": "{self.FIRST}[redacted:private-key]{self.LAST}{end}",'
        )

    @pytest.mark.parametrize("start", ["-", "+", "  ", "\t", "7\t", "     7\t", "     7→"])
    def test_a_key_in_a_diff_and_in_a_numbered_listing_is_masked(self, start: str) -> None:
        text = "".join(f"{start}{line}\n" for line in [self.FIRST, *self.BODY.split("\n"), "Abc=", self.LAST])
        redacted = redact(text)
        assert not any(line in redacted for line in [*self.BODY.split("\n"), "Abc="])
        assert redacted.count("\n") == text.count("\n")
        assert self.LAST in redacted

    def test_quoted_and_encrypted_keys_are_masked(self) -> None:
        head = "> Proc-Type: 4,ENCRYPTED\n> DEK-Info: AES-128-CBC,0123456789ABCDEF\n>\n"
        body = "".join(f"> {line}\n" for line in self.BODY.split("\n"))
        redacted = redact(f"> {self.FIRST}\n{head}{body}> {self.LAST}\nok\n")
        assert not any(line in redacted for line in self.BODY.split("\n"))
        assert redacted.startswith(f"> {self.FIRST}\n")
        assert redacted.endswith(self.LAST + "\nok\n")
        assert redacted.count("\n") == 1 + 3 + 6 + 1 + 1

    def test_prose_about_keys_and_public_keys_stay(self) -> None:
        for text in (
            f"The file starts with {self.FIRST}\nand it ends with {self.LAST}\n",
            f"between {self.FIRST} and {self.LAST} there is base64\n",
            f"-----BEGIN CERTIFICATE-----\n{self.BODY}\n-----END CERTIFICATE-----\n",
        ):
            assert redact(text) == text
