"""Disks that are small, or that nobody can write: real ones, where whoever runs the tests may mount them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Iterator[None]:
    """Put a disk of that size in the place of the folder, which is made. Skips where that is not allowed."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a disk here; SQLite's own limit is tested in any case")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Let nobody write the folder; for root, who may write everything, it must be on a disk of its own."""
    if os.geteuid() == 0:
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(path)], check=True)
        return
    folders = [path, *(folder for folder in path.rglob("*") if folder.is_dir())]
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o500)
    try:
        yield
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)


def fill(path: Path) -> Path:
    """Write until the disk is full; the file that fills it."""
    ballast = path / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return ballast
