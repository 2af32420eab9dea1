"""`recalld backfill` against a real broker and a counting server: what it says is what is then sent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from recalld.invocation import Invocation
from recalld.runs.backfill import find_transcripts, plan_backfill
from tests.commanding import CommandLine
from tests.embedding_server import EmbeddingServer
from tests.transcript_files import BEGUN, FORMATS, message_line, transcript
from tests.written_index import reading

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    from backports.zstd import compress


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A transcript of each format, one of them compressed."""
    folder = tmp_path / "old"
    for seed, name in enumerate(FORMATS):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{name}.jsonl").write_bytes(transcript(name, turns=20, seed=seed))
    codex = folder / "codex" / "codex.jsonl"
    codex.with_name("codex.jsonl.zst").write_bytes(compress(codex.read_bytes()))
    codex.unlink()
    return folder


def found(commands: CommandLine, query: str) -> list[str]:
    """The documents that a search finds."""
    _, out, _ = commands.run("search", query, "--json", "-n", "50")
    return [result["path"] for result in json.loads(out)["results"]]


# The estimate is what is then sent --------------------------------------------------------------------


def test_what_is_estimated_is_what_is_then_sent(commands: CommandLine, server: EmbeddingServer, old: Path) -> None:
    dry = commands.json("backfill", str(old), "--dry-run")
    assert (server.requests, dry["dryRun"], dry["result"]) == (0, True, None)
    done = commands.json("backfill", str(old))
    assert done["estimate"] == dry["estimate"]
    assert done["transcripts"] == done["result"]["indexed"] == len(FORMATS)
    assert done["estimate"]["messages"] == len(FORMATS) * 40
    assert done["estimate"]["chunks"] == done["result"]["chunks"] == done["result"]["vectorsReady"]
    assert done["estimate"]["toEmbed"] == server.inputs == server.distinct
    assert done["estimate"]["tokens"] == pytest.approx(done["result"]["spent"][0]["tokens"], abs=1)


def test_grown_partly_indexed_and_cached_transcripts_cost_what_is_new(commands: CommandLine, old: Path) -> None:
    commands.json("backfill", str(old), "--limit", "2")
    grown = old / "plain" / "plain.jsonl"
    with grown.open("ab") as file:
        for number in range(30):
            file.write(message_line("plain", "user", f"afterthought {number} " + "about telescopes " * 20, at=BEGUN))
    # The same words elsewhere are other chunks of another document, and the same texts.
    (old / "copy.jsonl").write_bytes((old / "openclaw" / "openclaw.jsonl").read_bytes())
    sent = commands.server.inputs
    plan = commands.json("backfill", str(old))
    assert 0 < plan["estimate"]["toEmbed"] == commands.server.inputs - sent
    assert commands.server.distinct == commands.server.inputs
    assert plan["result"]["vectorsReady"] == plan["result"]["chunks"] > commands.server.inputs
    assert plan["result"]["indexed"] == plan["transcripts"]
    nothing = commands.json("backfill", str(old))
    assert (nothing["transcripts"], nothing["unchanged"]) == (0, len(FORMATS) + 1)
    assert nothing["estimate"]["toEmbed"] == 0
    # Without its index everything is cached.
    for file in sorted((commands.home / "indexes").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    sent = commands.server.inputs
    again = commands.json("backfill", str(old))
    assert again["estimate"]["texts"] == again["estimate"]["cached"] > 0
    assert commands.server.inputs == sent


def test_a_resumed_backfill_forecasts_the_rest_with_the_rate_of_the_last_run(commands: CommandLine, old: Path) -> None:
    grown = old / "plain" / "plain.jsonl"
    first = commands.json("backfill", str(grown))
    assert first["estimate"]["seconds"] is None, "no rate is known before the first run"
    added = message_line("plain", "user", "about telescopes " * 20, at=BEGUN)
    with grown.open("ab") as file:
        file.write(added)
    settings = Invocation(str(commands.home.parent / "recalld.toml"), str(commands.home)).settings
    plan = plan_backfill(settings, settings.agents[0], find_transcripts([old], home=settings.home), exact=False)
    cost, forecast = plan.estimate, plan.forecast
    sizes = {key.path: stat.size for key, stat in plan.transcripts.items()} | {str(grown): len(added)}
    assert (list(forecast.sizes), len(sizes)) == (list(sizes.values()), len(FORMATS))
    with reading(commands.home) as reader:
        assert reader is not None
        assert forecast.finished == reader.counts().vectors_ready > 0
        width = int(reader.meta("dimensions") or 0)
    assert (cost.disk, cost.memory) == (forecast.chunks * (2_600 + 6 * width), forecast.chunks * (20 + 4 * width))
    assert forecast.rate is not None
    assert cost.seconds == pytest.approx(cost.to_embed / forecast.rate)


def test_without_an_index_the_agents_other_documents_are_counted_and_indexed_too(
    commands: CommandLine, server: EmbeddingServer, old: Path, workspace: Path
) -> None:
    for number in range(3):
        (workspace / "memory" / f"{number}.md").write_text(f"# Note {number}\n\nThe zebra number {number}.\n")
    done = commands.json("backfill", str(old))
    assert done["others"] == 3
    assert done["estimate"]["toEmbed"] == server.inputs
    (workspace / "memory" / "later.md").write_text("Nobody asked for this one.\n")
    (old / "more.jsonl").write_bytes(transcript("plain", turns=3, seed=9))
    later = commands.json("backfill", str(old))
    assert (later["others"], later["transcripts"]) == (0, 1)


def test_many_small_transcripts_fill_requests_across_commits(commands: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    for number in range(400):
        (folder / f"{number}.jsonl").write_bytes(message_line("plain", "user", f"the heron number {number}", at=BEGUN))
    done = commands.json("backfill", str(folder))
    assert done["result"]["vectorsReady"] == commands.server.inputs == 400
    assert commands.server.requests == done["estimate"]["requests"] == 1
    with (folder / "7.jsonl").open("ab") as file:
        file.write(message_line("plain", "user", "the egret", at=BEGUN))
    again = commands.json("backfill", str(folder))
    assert (again["transcripts"], again["unchanged"], commands.server.inputs) == (1, 399, 401)


# Which transcripts ------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_at_all(commands: CommandLine, home: Path, workspace: Path, old: Path) -> None:
    before = sorted(workspace.parent.rglob("*"))
    commands.say("backfill", str(old), "--dry-run", "--workspace", str(workspace))
    assert sorted(workspace.parent.rglob("*")) == before
    assert not home.exists()


def test_a_named_format_holds_below_a_configured_folder_and_for_indexed_transcripts(
    commands: CommandLine, workspace: Path, tmp_path: Path
) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    # As plain lines these say something; as what they look like they say nothing.
    lines = [
        {
            "type": "session",
            "version": 3,
            "id": "s",
            "role": "user",
            "content": "the ocelot is plain",
            "parentId": None,
        },
        {"type": "custom", "id": "x", "role": "assistant", "content": "so is the margay", "parentId": None},
    ]
    (sessions / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    commands.configure(f'sessions = ["{sessions}"]')
    commands.json("backfill", str(sessions))
    assert found(commands, "ocelot") == []
    forced = commands.json("backfill", str(sessions), "--format", "plain")
    assert (forced["transcripts"], forced["estimate"]["messages"], forced["result"]["indexed"]) == (1, 2, 1)
    assert found(commands, "ocelot") == ["sessions/a.jsonl"]
    assert commands.json("backfill", str(sessions), "--format", "plain")["transcripts"] == 0
    with (sessions / "a.jsonl").open("a") as file:
        file.write(json.dumps({"role": "user", "content": "and the serval"}) + "\n")
    commands.json("index")
    assert found(commands, "serval") == ["sessions/a.jsonl"]


# What goes wrong --------------------------------------------------------------------------------------


def test_a_damaged_file_is_one_line_and_keeps_what_was_read_and_the_rest_is_done(
    commands: CommandLine, old: Path
) -> None:
    whole = transcript("plain", turns=400, seed=7)
    damaged = old / "damaged.jsonl.zst"
    damaged.write_bytes(compress(whole)[:-2_000])
    code, out, err = commands.run("backfill", str(old))
    assert code == 1
    assert "1 cannot be read" in out
    assert f"{len(FORMATS)} of {len(FORMATS) + 1} transcripts indexed" in out
    failed = [line for line in err.splitlines() if line.startswith("  failed:")]
    assert len(failed) == 1
    assert str(damaged).removesuffix(".zst") in failed[0]
    assert "ends too early" in failed[0]
    assert str(old / "damaged.jsonl") in found(commands, "Question 3")
    code, out, _ = commands.run("backfill", str(old), "--json")
    body = json.loads(out)
    assert (code, body["ok"], body["transcripts"]) == (1, False, 1)
    assert body["result"]["failed"][0]["path"] == str(old / "damaged.jsonl")
    damaged.write_bytes(compress(whole))
    assert commands.json("backfill", str(old))["result"]["indexed"] == 1


def test_two_transcripts_of_one_name_are_not_taken_for_each_other(commands: CommandLine, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        (folder / "a.jsonl").write_bytes(transcript("plain", turns=3, seed=seed))
    commands.configure(f"sessions = {json.dumps([str(folder) for folder in folders])}")
    code, out, _ = commands.run("backfill", *map(str, folders), "--json")
    body = json.loads(out)
    assert (code, body["transcripts"]) == (1, 1)
    assert "a.jsonl" in body["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["{old}", "--since", "2999-01-01"], 0, None),
        (["{workspace}"], 3, "no transcripts"),
        (["{old}/nowhere"], 1, "is not there"),
        (["{old}", "--agent", "nobody"], 2, "no agent is called"),
        (["{old}", "--batch-api"], 2, "Batch API"),
    ],
)
def test_json_is_one_object_however_it_ends(
    commands: CommandLine, old: Path, workspace: Path, arguments: list[str], code: int, error: str | None
) -> None:
    commands.set("RECALLD_PROVIDER", "stub")
    given = [argument.format(old=old, workspace=workspace) for argument in arguments]
    left, out, err = commands.run("backfill", *given, "--json")
    [line] = out.splitlines()
    body = json.loads(line)
    assert (left, body["ok"]) == (code, code == 0)
    assert (body["error"] is None) if error is None else error in body["error"]
    assert error is None or error in err


# Providers --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_provider_that_is_down_is_waited_for_a_while_and_no_longer(
    commands: CommandLine, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recalld.runs.by_workers._PATIENCE_SECONDS", 0.5)
    commands.set("RECALLD_REMOTE__BASE_URL", "http://127.0.0.1:9/v1")
    code, out, _ = commands.run("backfill", str(old), "--json")
    body = json.loads(out)
    assert (code, body["ok"], body["result"]["indexed"]) == (1, False, len(FORMATS))
    assert body["result"]["vectorsPending"] == body["result"]["chunks"]
    assert "Connection refused" in body["result"]["stopped"]
