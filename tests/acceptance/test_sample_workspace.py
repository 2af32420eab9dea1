"""What a newcomer sees first: the sample workspace and the bundled model, in two languages."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.daemon import REPOSITORY, Daemon
from tests.waiting import wait_until


def test_the_sample_is_found_in_both_languages_with_the_bundled_model(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    shutil.copytree(REPOSITORY / "deploy" / "sample-workspace", workspace)
    with Daemon(tmp_path / "home", workspace, provider="local") as daemon:
        wait_until(lambda: vectors_complete(daemon), what="every chunk has its vector")
        assert daemon.found("which port does the gateway listen on", "MEMORY.md")
        assert daemon.found("暖气阀门在哪里", "MEMORY.md")
        # By meaning, across languages: no word of these questions is in the note.
        note = daemon.write("memory/keys.md", "The spare key is with our neighbour on the third floor.\n")
        wait_until(lambda: daemon.found("spare key neighbour", "memory/keys.md"))
        wait_until(lambda: vectors_complete(daemon))
        assert daemon.found("备用钥匙在邻居那里吗", "memory/keys.md")
        assert daemon.status()["provider"] == "local"
        note.unlink()


def vectors_complete(daemon: Daemon) -> bool:
    index = daemon.status()["index"]
    return bool(index["vectorsReady"] == index["chunks"] > 0)
