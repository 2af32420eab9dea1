from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from producers.hook_payloads import Hook
from producers.spool import drain, write_event, write_hook
from schemas.errors import BrokerUnavailable
from schemas.ports import Event


def test_spooled_events_are_delivered_once_and_in_order(tmp_path: Path) -> None:
    events = [Event("changed", "main", (f"/w/memory/{number}.md", "/w/日记.md")) for number in range(5)]
    for event in events:
        write_event(tmp_path, event)
    got: list[Event | Hook] = []
    drain(tmp_path, got.append)
    assert got == events
    drain(tmp_path, pytest.fail)


@pytest.mark.parametrize(
    "hook",
    [
        Hook("session-start"),
        Hook("compaction", ("/s/a.jsonl", "/s/日记\udc80.jsonl"), meant="main"),
        Hook("changed", session="s-7", agent="Research"),
    ],
)
def test_a_spooled_hook_comes_back_as_it_was(tmp_path: Path, hook: Hook) -> None:
    write_hook(str(tmp_path), hook)
    got: list[Event | Hook] = []
    drain(tmp_path, got.append)
    assert got == [hook]
    assert isinstance(got[0], Hook)


def test_an_event_that_cannot_be_delivered_stays_with_all_later_ones(tmp_path: Path) -> None:
    for kind in ("reconcile", "session-start", "changed"):
        write_event(tmp_path, Event(kind, "main"))
    got: list[str] = []

    def deliver(event: Event) -> None:
        if event.kind == "session-start" and not got[1:]:
            got.append("refused")
            raise BrokerUnavailable("away")
        got.append(event.kind)

    with pytest.raises(BrokerUnavailable):
        drain(tmp_path, deliver)
    drain(tmp_path, deliver)
    assert got == ["reconcile", "refused", "session-start", "changed"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"kind": 1, "agent": "main"}',
        b'{"kind": "changed", "agent": "main", "paths": [1]}',
        b'{"hook": "grew", "agent": "main"}',
        b'{"hook": {"kind": "grew", "session": 7}}',
        b"[" * 100_000,
        b'{"kind": ' * 100_000,
        b"9" * 5000,
        b"\0" * 100,
        b"{}\x1b[2J",
    ],
    ids=range(13),
)
def test_a_damaged_file_is_set_aside_with_a_reason_and_the_rest_is_delivered(tmp_path: Path, content: bytes) -> None:
    write_event(tmp_path, Event("reconcile", "main"))
    (tmp_path / "spool" / "0-broken.json").write_bytes(content)
    got: list[Event | Hook] = []
    set_aside = drain(tmp_path, got.append)
    assert got == [Event("reconcile", "main")]
    assert len(set_aside) == 1
    damaged = tmp_path / "spool" / "damaged"
    assert (damaged / "0-broken.json").read_bytes() == content
    assert "0-broken.json was set aside: " in (damaged / "0-broken.json.reason").read_text()
    assert drain(tmp_path, got.append) == ()


@pytest.mark.parametrize("name", [b"0-\xff\x1b[31m.json", b"0" * 255, b"0-new\nline.json", b"--help"])
def test_a_damaged_file_of_any_name_is_set_aside_and_can_be_told(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / os.fsdecode(name)).write_text("{")
    [sentence] = drain(tmp_path, pytest.fail)
    assert sentence.encode().isascii()
    assert len(list((tmp_path / "spool" / "damaged").iterdir())) == 2
    assert drain(tmp_path, pytest.fail) == ()


def test_a_lack_of_descriptors_condemns_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_event(tmp_path, Event("reconcile", "main"))

    def refused(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refused)
        with pytest.raises(OSError, match="Too many"):
            drain(tmp_path, pytest.fail)
    got: list[Event | Hook] = []
    drain(tmp_path, got.append)
    assert got == [Event("reconcile", "main")]


def test_nothing_but_regular_files_is_read(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    secret = tmp_path / "secret.json"
    secret.write_text('{"kind": "reconcile", "agent": "main"}')
    (spool / "1-link.json").symlink_to(secret)
    os.mkfifo(spool / "2-pipe.json")
    (spool / "3-folder.json").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert len(drain(tmp_path, pytest.fail)) == 3
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert drain(tmp_path, pytest.fail) == ()


def test_a_half_written_file_is_not_looked_at_and_an_abandoned_one_is_removed(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / ".1-young.json").write_text("{")
    (spool / ".2-old.json").write_text("{")
    os.utime(spool / ".2-old.json", (0, 0))
    assert drain(tmp_path, pytest.fail) == ()
    assert [path.name for path in spool.iterdir()] == [".1-young.json"]


def test_only_the_owner_can_read_the_spool(tmp_path: Path) -> None:
    write_event(tmp_path / "home", Event("changed", "main", ("/w/private.md",)))
    [path] = (tmp_path / "home" / "spool").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert path.parent.parent.stat().st_mode & 0o077 == 0


def test_an_event_that_finds_no_space_is_refused_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_event(tmp_path, Event("changed", "main", ("early.md",)))

    def no_space(_old: str, _new: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("producers.spool.os.rename", no_space)
        with pytest.raises(OSError, match="No space left"):
            write_event(tmp_path, Event("changed", "main", ("late.md",)))
    delivered: list[Event] = []
    drain(tmp_path, delivered.append)
    assert [event.paths for event in delivered] == [("early.md",)]
    assert list((tmp_path / "spool").iterdir()) == []
