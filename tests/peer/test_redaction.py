"""Secrets as people have them in their notes and transcripts, and what is like them and is to be found again."""

from __future__ import annotations

import base64
import random

import pytest

from memory.redaction import redact
from tests.secret_samples import PASSWORD

KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
SECRET_KEY = "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYzEXAMPLEKq"


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


def test_secrets_are_found_however_deep_json_is_nested() -> None:
    text = f'{{"password": "{PASSWORD}", "ttl": 12}}'
    for _ in range(4):
        redacted = redact(text)
        assert PASSWORD not in redacted
        assert "ttl" in redacted
        text = '{"body": "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"}'
    assert redact(f'{{"password": {{"value": "{PASSWORD}"}}}}') == '{"password": {"value": "[redacted:password]"}}'
    assert redact('{"password": {"value": "required"}}') == '{"password": {"value": "required"}}'
