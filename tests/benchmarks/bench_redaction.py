"""Secrets that are found and look-alikes masked in vain, and megabytes redacted a second.

    python -m tests.benchmarks.bench_redaction [--megabytes 8] [--findings]

With `pip install detect-secrets`, the table of findings has its row for the same lines.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import memory
from memory.redaction import redact
from tests.benchmarks.frame import notes, options
from tests.secret_samples import WITH_SECRETS, WITHOUT_SECRETS, written

_CODE = '''\
def open_client(settings: Settings, *, token: str | None = None) -> Client:
    """Return a client; its key comes from `settings.api_key`, its password from the environment."""
    password = os.environ["GATEWAY_PASSWORD"]
    return Client(settings.url, api_key=settings.api_key, token=token, timeout_seconds=30.0)

- see /srv/projects/gateway/src/connection_pools/test_reconnecting.py:214 and https://example.com/a/b?page=2
- commit 3f786850e387550fdab836ed7e6dc881de23001b, session 550e8400-e29b-41d4-a716-446655440000
'''

_CHINESE = (
    "我们今天讨论了数据库迁移的问题：密码重置流程要改，令牌数量限制在 400 个 token 以内。"
    "决定先在测试环境部署新版本，再观察一周。\n"
)


def transcripts(megabytes: float) -> list[str]:
    """Messages of a few hundred bytes to some kilobytes: English, Chinese, code; one in a hundred has a secret."""
    source = random.Random(11)
    english = "".join(notes(1.0, share_of_chinese=0.0)).split("\n\n")
    messages: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        parts = [
            _CODE if draw < 0.2 else _CHINESE * 3 if draw < 0.4 else "\n\n".join(source.choices(english, k=4))
            for draw in (source.random() for _ in range(source.randint(1, 6)))
        ]
        if source.random() < 0.01:
            parts.append("the new " + "password: " + f"hunter{source.randint(10, 99)}")
        messages.append("\n".join(parts))
        size += len(messages[-1].encode())
    return messages


def code(megabytes: float) -> list[str]:
    """This project's own modules, over and over."""
    modules = [path.read_text("utf-8") for path in sorted(Path(memory.__file__).parent.rglob("*.py"))]
    return modules * max(1, int(megabytes * 1e6 / sum(map(len, modules))))


def findings() -> None:
    """Print a table: how many sample lines with secrets are found, and how many look-alikes are masked in vain."""
    source = random.Random(1)
    samples = [written(line, source) for line in WITH_SECRETS]
    has_look = [secret not in redact(f"say {secret} now") for _, secret, _ in samples]
    with_secrets = [before + secret + after for before, secret, after in samples]
    found = [not redact(text).startswith(b + s) for text, (b, s, _) in zip(with_secrets, samples, strict=True)]
    print("| | secrets of a known look | secrets after a label | look-alikes masked in vain |")
    print("|---|---|---|---|")
    _print_row("recalld", has_look, found, [redact(line) != line for line in WITHOUT_SECRETS])
    try:
        import detect_secrets
    except ImportError:
        print("detect-secrets is not installed: `pip install detect-secrets` adds its row")
        return

    def judged(texts: Sequence[str]) -> list[bool]:
        with tempfile.TemporaryDirectory() as folder, detect_secrets.settings.default_settings():
            file = Path(folder) / "notes.md"
            results = []
            for text in texts:
                file.write_text(text + "\n", "utf-8")
                secrets = detect_secrets.SecretsCollection()
                secrets.scan_file(str(file))
                results.append(bool(secrets))
        return results

    _print_row(f"detect-secrets {version('detect-secrets')}", has_look, judged(with_secrets), judged(WITHOUT_SECRETS))


def _print_row(name: str, has_look: Sequence[bool], found: Sequence[bool], alarms: Sequence[bool]) -> None:
    looks = [hit for hit, look in zip(found, has_look, strict=True) if look]
    labels = [hit for hit, look in zip(found, has_look, strict=True) if not look]
    cells = [f"{sum(hits)} of {len(hits)} ({100 * sum(hits) / len(hits):.0f} %)" for hits in (looks, labels, alarms)]
    print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=float, default=8.0)
    parser.add_argument("--findings", action="store_true", help="print the table of findings alone")
    arguments = parser.parse_args()
    megabytes = arguments.megabytes
    findings()
    if arguments.findings:
        return
    for label, texts in (
        ("notes, English", notes(megabytes, share_of_chinese=0.0)),
        ("notes, mixed", notes(megabytes, share_of_chinese=0.2)),
        ("messages", transcripts(megabytes)),
        ("code", code(megabytes)),
        ("labels everywhere", [_CODE * 8] * int(megabytes * 1e6 / len(_CODE * 8))),
        ("Chinese", [_CHINESE * 30] * int(megabytes * 1e6 / len(_CHINESE.encode() * 30))),
    ):
        size = sum(len(text.encode()) for text in texts) / 1e6
        begun = time.process_time()
        for text in texts:
            redact(text)
        spent = time.process_time() - begun
        print(f"{label:18} {size:6.1f} MB in {len(texts):6} texts: {spent:5.2f} s CPU = {size / spent:6.1f} MB/s")


if __name__ == "__main__":
    main()
