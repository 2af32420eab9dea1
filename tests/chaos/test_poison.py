"""A document that kills whoever reads it becomes a dead letter; so does a text that kills whoever embeds it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import Daemon
from tests.waiting import wait_until

#: What a worker's Python imports at its start: words in a text are as good as a library that crashes.
_PLUGIN = """
import os, signal, sys

def deadly(text):
    return any(word in text for word in os.environ["POISON"].split(",") if word)

# Neither is set so early by itself.
sys.path.insert(0, os.getcwd())

if "work" in sys.orig_argv:
    import memory.index.planner as planning
    import workers.queue.broker
    from memory.embedding.providers.stub import StubProvider

    workers.queue.broker.HEARTBEAT_TIMEOUT_MS = 1500
    workers.queue.broker.MAINTENANCE_CHANCE = 1_000_000
    cut, embed = planning.cut_document, StubProvider.embed_documents

    def cut_or_die(text, *rest):
        if "hemlock" in text and deadly("hemlock"):
            os.kill(os.getpid(), signal.SIGKILL)
        return cut(text, *rest)

    def embed_or_die(provider, texts):
        if any("nightshade" in text for text in texts) and deadly("nightshade"):
            os.kill(os.getpid(), signal.SIGKILL)
        return embed(provider, texts)

    planning.cut_document, StubProvider.embed_documents = cut_or_die, embed_or_die
    if os.environ.get("VECTORS_LATER"):
        import memory.index.indexer
        memory.index.indexer.VECTOR_PATIENCE_SECONDS = -1.0
elif "up" in sys.orig_argv:
    import recalld.up.supervisor

    recalld.up.supervisor.LONGEST_PAUSE_SECONDS = 0.2
"""


def poisoned(tmp_path: Path, home: Path, workspace: Path, **environment: str) -> Daemon:
    plugin = tmp_path / "plugin"
    plugin.mkdir(exist_ok=True)
    (plugin / "sitecustomize.py").write_text(_PLUGIN)
    path = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return Daemon(home, workspace, environment={"PYTHONPATH": path, **environment})


def letters(daemon: Daemon) -> dict[str, Mapping[str, Any]]:
    answer = daemon.run("dead", "list", "--json")
    return {letter["path"]: letter for letter in json.loads(answer.stdout)["deadLetters"]}


@pytest.fixture
def notes(workspace: Path) -> Path:
    folder = workspace / "memory"
    for number in range(12):
        (folder / f"fine-{number}.md").write_text(f"The ibex number{number} climbs.\n")
    return folder


@pytest.mark.long
def test_a_document_that_kills_its_readers_is_a_dead_letter_and_the_rest_is_found(
    tmp_path: Path, home: Path, workspace: Path, notes: Path
) -> None:
    (notes / "bad.md").write_text("Socrates drank hemlock.\n")
    with poisoned(tmp_path, home, workspace, POISON="hemlock") as daemon:
        wait_until(lambda: "memory/bad.md" in letters(daemon), timeout=120, what=daemon.said())
        [(path, letter)] = letters(daemon).items()
        assert (path, letter["errorClass"], letter["attempts"]) == ("memory/bad.md", "WorkerDied", 5)
        assert "worker died 5 times" in letter["reason"]
        wait_until(lambda: daemon.found("number11", "memory/fine-11.md"))
        wait_until(lambda: not daemon.status()["queue"]["pending"])
        status = daemon.status()
        assert (status["ok"], status["index"]["files"]) == (False, 12)
        [worker] = daemon.children("work")
        # Comparing files and index again makes no worker die again.
        daemon.run("emit", "reconcile")
        daemon.write("memory/later.md", "The quokka smiles.\n")
        wait_until(lambda: daemon.found("quokka", "memory/later.md"))
        wait_until(lambda: not daemon.status()["queue"]["pending"])
        assert daemon.children("work") == [worker]
        # A changed file is tried again.
        (notes / "bad.md").write_text("Socrates drank tea.\n")
        wait_until(lambda: daemon.found("socrates tea", "memory/bad.md") and not letters(daemon))
        assert daemon.children("work") == [worker]


@pytest.mark.long
def test_a_text_that_kills_its_embedders_is_refused_and_others_get_their_vectors(
    tmp_path: Path, home: Path, workspace: Path, notes: Path
) -> None:
    (notes / "bad.md").write_text("The nightshade grows by the wall.\n")
    with poisoned(tmp_path, home, workspace, POISON="nightshade", VECTORS_LATER="1") as daemon:
        wait_until(lambda: "memory/bad.md" in letters(daemon), timeout=120, what=daemon.said())
        [(_, letter)] = letters(daemon).items()
        assert letter["errorClass"] == "EmbeddingRefused"
        wait_until(lambda: daemon.status()["index"]["vectorsReady"] == 12)
        assert daemon.found("nightshade", "memory/bad.md"), "keywords find it all the same"
