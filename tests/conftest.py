"""Fixtures that many tests share: a home, its settings and its private broker."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from schemas.settings import Settings
from workers.broker_server import BrokerServer
from workers.connection import connect, namespace
from workers.names import Keys

# The same examples each time, so that a red run is about what was changed. `--hypothesis-profile=default` looks for new
# ones. How long one of them takes, to make or to try, says nothing on a busy machine.
hypothesis_settings.register_profile(
    "repeated", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("repeated")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder that nothing was written to yet."""
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace with its memory folder."""
    folder = tmp_path / "workspace"
    (folder / "memory").mkdir(parents=True)
    return folder


@pytest.fixture
def settings(home: Path, workspace: Path) -> Settings:
    """One agent, the deterministic stub provider, everything else as it comes."""
    return Settings.model_validate(
        {"home": home, "provider": "stub", "agents": [{"id": "main", "workspace": workspace, "provider": "stub"}]}
    )


@pytest.fixture
def broker_server(settings: Settings) -> Iterator[BrokerServer]:
    """The home's private Valkey, running."""
    server = BrokerServer(settings)
    server.ensure()
    yield server
    server.stop()


@pytest.fixture
def client(settings: Settings, broker_server: BrokerServer) -> Iterator[redis.Redis]:
    """A client of the home's Valkey."""
    with connect(settings) as connected:
        yield connected


@pytest.fixture
def keys(settings: Settings) -> Keys:
    """The home's key names."""
    return Keys(namespace(settings))


@pytest.fixture(autouse=True)
def _plain_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command that runs in this process says of logs holds for its own test only.

    Modules keep a logger that is cached, with all that was said of it, for the tests after it.
    """
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **options: configure(**{**options, "cache_logger_on_first_use": False})
    )
    structlog.reset_defaults()
    # Not to where the answers of commands are read from.
    configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


@pytest.fixture(scope="session")
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
