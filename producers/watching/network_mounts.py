"""Folders of which the system does not tell all changes: those that other machines make on network file systems."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

#: Types of file systems (proc(5), mountinfo) that others write to without this system's knowledge: over the network,
#: or from outside of a virtual machine.
_OVER_THE_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gfs2", "ocfs2", "davfs"}
_FROM_OUTSIDE = {"9p", "virtiofs", "vboxsf", "prl_fs", "vmhgfs", "drvfs"}
_FUSE = {"sshfs", "glusterfs", "rclone", "s3fs", "gcsfuse", "vmhgfs-fuse", "grpcfuse", "osxfs"}
BLIND = frozenset({*_OVER_THE_NETWORK, *_FROM_OUTSIDE, *(f"fuse.{name}" for name in _FUSE)})

_ESCAPES = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def blind_folder(folders: Iterable[Path], *, mounts: Path = Path("/proc/self/mountinfo")) -> tuple[Path, str] | None:
    """The first folder that lies on such a file system, and its type; None without one, and where nobody can tell."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    types = dict(_mount(line) for line in lines if " - " in line)
    for folder in folders:
        real = Path(os.path.realpath(folder))
        kind = next((types[str(above)] for above in (real, *real.parents) if str(above) in types), "")
        if kind in BLIND:
            return folder, kind
    return None


def _mount(line: str) -> tuple[str, str]:
    """Where something is mounted, and its type."""
    before, _, after = line.partition(" - ")
    where = before.split(" ")[4]
    for escape, character in _ESCAPES.items():
        where = where.replace(escape, character)
    return where, after.split(" ")[0]
