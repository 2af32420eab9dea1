from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import pytest

from producers.hook_events import Hook
from producers.session_ends import EndUnkept, SessionEnds
from producers.spool import drain, write_event, write_hook, write_usage
from schemas.errors import BrokerUnavailable
from schemas.ports import Event, SpooledUsage, Usage


def test_spooled_events_are_delivered_once_and_in_order(tmp_path: Path) -> None:
    events = [Event("changed", "main", (f"/w/memory/{number}.md", "/w/日记.md")) for number in range(5)]
    for event in events:
        write_event(tmp_path, event)
    got: list[Event | Hook] = []
    drain(tmp_path, got.append)
    assert got == events
    drain(tmp_path, pytest.fail)


def test_a_spooled_usage_comes_back_as_it_was(tmp_path: Path) -> None:
    usage = Usage("openai", "m", requests=1, inputs=2, tokens=7)
    spooled = SpooledUsage(usage, {"main": usage}, queries=True, day=date(2026, 11, 28))
    write_usage(tmp_path, spooled)
    got: list[object] = []
    drain(tmp_path, got.append)
    assert got == [spooled]


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


def test_a_session_end_that_could_not_be_kept_comes_again_and_blocks_no_event(tmp_path: Path) -> None:
    for hook in (Hook("ended", ("/s/a.jsonl",), at=7.5), Hook("grew", ("/s/b.jsonl",))):
        write_hook(str(tmp_path), hook)
    got: list[Event | Hook] = []

    def deliver(hook: Event | Hook) -> None:
        if hook.kind == "ended":
            raise EndUnkept
        got.append(hook)

    drain(tmp_path, deliver)
    assert [hook.kind for hook in got] == ["grew"]
    drain(tmp_path, got.append)
    assert got[1:] == [Hook("ended", ("/s/a.jsonl",), at=7.5)]


@pytest.mark.parametrize(
    ("hook", "is_kept"),
    [
        (Hook("ended", ("/s/a.jsonl",), program="openclaw", at=7.5), True),
        (Hook("session-start", ("/s/a.jsonl",), program="codex", at=7.5), True),
        (Hook("session-start", ("/s/a.jsonl",), program="claude-code", at=7.5), False),
        (Hook("grew", ("/s/a.jsonl",), program="codex", at=7.5), False),
    ],
)
def test_where_the_spool_takes_nothing_the_end_of_a_session_takes_a_slot(
    tmp_path: Path, hook: Hook, is_kept: bool
) -> None:
    (tmp_path / "spool").write_text("in the way", "utf-8")
    ends = SessionEnds(tmp_path)
    if not is_kept:
        with pytest.raises(FileExistsError):
            write_hook(str(tmp_path), hook)
        assert ends.all() == []
        return
    write_hook(str(tmp_path), hook)
    [end] = ends.all()
    assert (end.at, json.loads(end.hook)) == (7.5, [*hook[:1], [*hook.paths], *hook[2:]])


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
        *(b"", b"{", b"\xff\xfe", b"[]", b"\0" * 100, b"{}\x1b[2J", b"9" * 5000, b"[" * 100_000),
        *(b'{"kind": 1, "agent": "main"}', b'{"kind": "changed", "agent": "main", "paths": [1]}'),
        *(b'{"hook": "grew", "agent": "main"}', b'{"hook": {"kind": "grew", "session": 7}}'),
        *(
            b'{"kind": ' * 100_000,
            b'{"usage": 1}',
            b'{"usage": {"agents": {}, "usage": {"x": 1}, "day": "2026-11-28"}}',
        ),
    ],
    ids=range(15),
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
    assert "0-broken.json" in (damaged / "0-broken.json.reason").read_text()
    assert drain(tmp_path, got.append) == ()


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
