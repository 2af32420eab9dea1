"""Secrets as people have them in their notes and transcripts, and what is like them and is to be found again."""

from __future__ import annotations

import base64
import random
import re

import pytest

from memory.redaction import redact
from tests.secret_samples import PASSWORD, made

KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzEXAMPLEKq"


@pytest.mark.parametrize("name", ["TOKEN", "export API_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD"])
def test_a_dollar_sign_does_not_make_a_variable_of_random_characters(name: str) -> None:
    secret = "$k7Qz" + "P2mNw9xLr4Tb"
    for written in (f"{name}={secret}", f'{name}="{secret}"', f"{name}={secret}\nNEXT=1\n"):
        assert secret[1:] not in redact(written)
    for stays in (f"{name}=$NAME", f"{name}=${{NAME}}", f"{name}=$(cmd --get key2)", f"{name}=$keyOfProd2"):
        assert redact(stays) == stays


class TestSecretKeysOfAws:
    def test_one_beside_its_key_id_is_masked_wherever_it_stands(self) -> None:
        plain = "Zx4kW9" + "qLmT7vRb2NcYd8HsJgP5fKwQeUaXi3oB1tVnMz"[:34]
        assert len(plain) == len(SECRET_KEY) == 40
        for secret in (SECRET_KEY, plain):
            for text in (
                f"{KEY_ID} {secret}",
                f"{KEY_ID}\n{secret}\n",
                f'["{secret}", "{KEY_ID}"]',
                f"aws,{KEY_ID},{secret},eu-west-1",
            ):
                assert redact(text) == text.replace(KEY_ID, "[redacted:aws-key-id]").replace(
                    secret, "[redacted:aws-secret]"
                )

    @pytest.mark.parametrize("text", ["§", "- §", "`§`", '"§",', "it is § for the bucket", "s3 = '§'"])
    def test_one_by_itself_is_masked(self, text: str) -> None:
        assert redact(text.replace("§", SECRET_KEY)) == text.replace("§", "[redacted:aws-secret]")

    def test_what_else_has_forty_characters_stays(self) -> None:
        source = random.Random(1)
        lines = [base64.b64encode(source.randbytes(30)).decode() for _ in range(40)]
        wrapped = "\n".join(lines)
        assert redact(wrapped) == wrapped
        last = base64.b64encode(source.randbytes(57 * 3 + 30)).decode()
        certificate = "\n".join(last[at : at + 76] for at in range(0, len(last), 76))
        assert certificate.split("\n")[-1] == last[-40:]
        assert redact(certificate) == certificate
        for text in (
            "The note says that we meet at 8 in the se",
            "我们今天讨论了数据库迁移的问题呢呢",
            '{"a":[1,2,3],"b":"twelve","c": true}',
        ):
            prose = base64.b64encode(text.encode()[:30]).decode()
            assert redact(prose) == prose
        for _ in range(200):
            digest = source.randbytes(20).hex()
            for stays in (digest, digest.upper(), f"at {digest}", f"lib/{digest[:2]}/{digest[2:]}"):
                assert redact(stays) == stays


@pytest.mark.parametrize(
    ("header", "secrets"),
    [
        (
            'Authorization: Digest username="joe", realm="r@x", nonce="§", uri="/a", nc=1, cnonce="§", response="§"',
            ("dcd98b7102dd2f0e8b11d0f600bfb0c0", "0a4f113b", "6629fae49393a05397450978507c4ef1"),
        ),
        (
            'Authorization: Hawk id="dh37fgj492je", ts="1353832234", ext="some-app-data", mac="§"',
            ("6R4rV5iE+NPoym+WwjeHzjAGXUtL" + "NIxmo1vpMofpLAE=",),
        ),
    ],
)
def test_of_a_signed_header_the_proof_is_masked_and_the_rest_can_be_found(
    header: str, secrets: tuple[str, ...]
) -> None:
    parts = header.split("§")
    text = parts[0] + "".join(secret + part for secret, part in zip(secrets, parts[1:], strict=True))
    assert redact(text) == header.replace("§", "[redacted:authorization]")
    quoted = text.replace('"', '\\"')
    assert redact(f'{{"header": "{quoted}"}}') == '{"header": "' + redact(text).replace('"', '\\"') + '"}'
    folded = text.replace(", ", ",\n  ")
    assert redact(folded) == redact(text).replace(", ", ",\n  ")


def test_a_cookie_without_a_name_is_masked_when_it_is_opaque() -> None:
    value = made("{A30}7", random.Random(2))
    for text in (f"Cookie: {value}", f'"Cookie": "{value}"', f"Cookie: {value}==", f"cookie = '{value}'"):
        assert value not in redact(text)
    for stays in (
        "Cookie: theme=dark",
        "cookie: see-the-browser-settings-2",
        "Cookies: 1200",
        "cookie: session_cookie_name",
    ):
        assert redact(stays) == stays


@pytest.mark.parametrize("label", ["x-api-key", "X-API-Key", "X-Auth-Token", "x-goog-api-key"])
def test_a_short_value_of_a_header_that_holds_nothing_but_a_key_is_masked(label: str) -> None:
    for text in (f"{label}: §", f"curl -H '{label}: §' https://x.example", f'{{"headers":{{"{label}":"§"}}}}'):
        redacted = redact(text.replace("§", PASSWORD))
        assert re.fullmatch(re.escape(text).replace("§", r"\[redacted:(key|token)\]"), redacted)
    for value in ("required", "v1", "<key>", "$KEY_1", "apiKey1", "400"):
        assert redact(f"{label}: {value}") == f"{label}: {value}"


def test_a_passphrase_of_plain_words_is_masked_and_a_sentence_about_one_stays() -> None:
    for text in (
        "passphrase: §",
        "- **Passphrase**: §",
        "Backup passphrase: §\n",
        "PASSPHRASE=§",
        "passphrase (laptop): §",
    ):
        assert redact(text.replace("§", "correct horse battery staple")) == text.replace("§", "[redacted:password]")
    for words in (
        "ask Anna",
        "see the wiki",
        "kept in the safe at home",
        "not needed since last year",
        "four random words",
    ):
        assert redact(f"passphrase: {words}") == f"passphrase: {words}"


def test_the_token_of_something_is_masked_in_an_address() -> None:
    for name in ("reset_token_8f3a", "verify_token_u42", "share_token_550e8400-e29b", "invite_token_17"):
        text = f"https://x.example/in?lang=en&{name}=§&next=2"
        assert redact(text.replace("§", "Zx81" + "kQpLm2")) == text.replace("§", "[redacted:token]")
    for query in (
        "token_type=bearer",
        "next_token_2=Zx81kQpLm2",
        "token_count_1=400",
        "token_url=https://x.example/a2",
    ):
        assert redact(f"https://x.example/in?{query}") == f"https://x.example/in?{query}"


def test_secrets_are_found_however_deep_json_is_nested() -> None:
    text = f'{{"password": "{PASSWORD}", "ttl": 12}}'
    for _ in range(4):
        redacted = redact(text)
        assert PASSWORD not in redacted
        assert "ttl" in redacted
        text = '{"body": "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"}'
    assert redact(f'{{"password": {{"value": "{PASSWORD}"}}}}') == '{"password": {"value": "[redacted:password]"}}'
    assert redact('{"password": {"value": "required"}}') == '{"password": {"value": "required"}}'


@pytest.mark.parametrize(
    "command",
    [
        "curl -u 'me:§' https://x.example",
        'curl -u "me:§ and more words" https://x.example',
        "curl -ume:§ https://x.example",
        '{"command": "curl -u \\"me:§\\" https://x.example"}',
        '{"command": "curl -H \\"x-api-key: §\\" https://x.example"}',
        "curl -d 'api_key=§' https://x.example",
        'curl --data-raw "password=§&user=joe" https://x.example',
        "curl -u 'CORP\\joe:§' https://x.example",
    ],
)
def test_what_a_quoted_curl_sends_is_masked(command: str) -> None:
    redacted = redact(command.replace("§", PASSWORD))
    assert PASSWORD not in redacted
    assert "more words" not in redacted
    assert redacted.count("[redacted:") == 1
    assert redacted.endswith(command[-8:])
