"""Asking over https, against a server that signed its certificate itself."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from recalld.client import ServiceUnavailable
from tests.client_talk import KINDS, Talk
from tests.raw_server import answer, raw_server

OK = answer(b'{"results": []}')


@pytest.fixture(params=KINDS)
def talk(request: pytest.FixtureRequest) -> Talk:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate for 127.0.0.1, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "recalld")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_trusted_certificate_is_enough_and_its_connection_is_used_again(
    talk: Talk, certificate: Path, tls: ssl.SSLContext
):
    trusting = ssl.create_default_context(cafile=str(certificate))
    with raw_server([OK, OK], tls=tls) as server:
        assert talk(server.url, "a", "b", ssl_context=trusting) == [{"results": []}] * 2
    assert len(server.connections) == 1


def test_an_unknown_certificate_is_refused_before_anything_is_sent(talk: Talk, tls: ssl.SSLContext):
    said = r"certificate of 127\.0\.0\.1:\d+ is not trusted .* ssl_context="
    with raw_server([OK], tls=tls) as server, pytest.raises(ServiceUnavailable, match=said):
        talk(server.url, "a", token="secret")
    assert server.requests == []


def test_a_handshake_that_never_ends_is_given_up(talk: Talk):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match="no recalld service answers"):
            talk(url, "a", connect_timeout_seconds=0.1)
