"""Beginning, completion and removal of generations in a folder: the writing half of `memory.index.file_generations`."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from memory.http.whole_files import move_folder_aside, sync_folder, write_whole
from memory.index.file_generations import FileGenerations
from memory.index.fingerprint import Fingerprint
from memory.index.generation_writer import KEPT_CORRUPT_FILES, GenerationWriter, IndexOwner, new_name
from memory.index.generations import CURRENT, NEXT
from memory.store.durable_sqlite import locked, parts, set_aside
from memory.store.errors import NoRoom, StoreCorrupt, StoreFull, StoreUnreadable
from memory.store.options import StoreOptions
from memory.store.sqlite.writer import SqliteStore, create_generation
from memory.store.writer import Store

#: Possible size of a new generation relative to the present one: other chunks, wider vectors.
GROWTH = 1.5

#: Extra bytes for its write-ahead log and for other programs that write meanwhile.
RESERVE_BYTES = 64 * 1024 * 1024

#: Seconds for which damaged files are kept for inspection: they hold text that may be deleted.
KEPT_CORRUPT_SECONDS = 2_700.0

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class HomeOwner(IndexOwner):
    """Owner of a home: the process that holds a lock file. The system releases it when the process ends.

    A home that cannot be written has no owner.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "owner.lock"
        self._held: ExitStack | None = None
        self._lock = threading.Lock()

    def owns(self) -> bool:
        with self._lock, suppress(OSError):
            if self._held is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with ExitStack() as stack:
                    if stack.enter_context(locked(self._path, wait=False)):
                        self._held = stack.pop_all()
            return self._held is not None
        return False

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def free_bytes(folder: Path) -> int | None:
    """Return the bytes that this user may still write to a folder; None if the system does not report them."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def require_room(current: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
    """Check that a new generation fits on the disk beside the file `current`.

    Raises:
        NoRoom: too few bytes are free.
    """
    available = free(current.parent)
    present = sum(
        part.stat().st_size for end in ("", "-wal") if (part := current.with_name(current.name + end)).exists()
    )
    needed = int(present * GROWTH) + RESERVE_BYTES
    if available is not None and available < needed:
        raise NoRoom(
            f"a new index beside the present one needs about {needed / 1e6:,.0f} MB, and {available / 1e6:,.0f} MB are "
            f"free in {current.parent}; free some and it is built (the present one answers meanwhile)"
        )


class FileGenerationWriter(FileGenerations, GenerationWriter):
    """Generations of one agent in a folder, which is made on demand."""

    def __init__(self, folder: Path, options: StoreOptions, *, owner: IndexOwner | None = None) -> None:
        FileGenerations.__init__(self, folder, options)
        GenerationWriter.__init__(self, owner=owner)

    def set_aside_damaged(self, *, suspect: str | None = None) -> list[str]:
        names = dict.fromkeys(name for name in self._existing() if name is not None)
        damaged = [name for name in names if name == suspect or not self._is_sound(name)]
        return [self._set_aside(name) for name in damaged]

    def _set_aside(self, name: str) -> str:
        """Rename a damaged generation, drop the pointers to it and return its new name.

        Do nothing if another process has already renamed it.
        """
        with self._lock, self._locked():
            for pointer in (CURRENT, NEXT):
                if self.pointer(pointer) == name:
                    self._point(pointer, None)
            return set_aside(self.folder / name).name

    def sweep(self, *, older_than_seconds: float, kept_corrupt: int | None = KEPT_CORRUPT_FILES) -> None:
        # A deleted file disappears from the folder at once. Its readers go on reading; its space returns when the last
        # one closes.
        if self.folder.is_dir():
            with self._locked():
                self._sweep(older_than_seconds, kept_corrupt)

    def _sweep(self, older_than_seconds: float, kept_corrupt: int | None) -> None:
        unused, corrupt = ([self.folder / name for name in names] for names in self.leftovers())
        # Without CURRENT, one of the unreferenced generations was the live one: keep them all.
        is_lost = self._existing()[0] is None
        surplus = [path for path in unused if not is_lost and time.time() - path.stat().st_mtime >= older_than_seconds]
        if kept_corrupt is not None:
            times = {path: int(path.name.rpartition("-")[2]) for path in corrupt}
            corrupt.sort(key=times.__getitem__, reverse=True)
            oldest = time.time() - KEPT_CORRUPT_SECONDS
            surplus += [path for place, path in enumerate(corrupt) if place >= kept_corrupt or times[path] < oldest]
        for path in surplus:
            for part in parts(path):
                part.unlink(missing_ok=True)

    def _point(self, pointer: str, name: str | None) -> None:
        # Atomic and durable.
        path = self.folder / pointer
        move_folder_aside(path)
        if name is None:
            path.unlink(missing_ok=True)
            sync_folder(self.folder)
        else:
            write_whole(path, f"{name}\n".encode())

    def _existing(self) -> tuple[str | None, str | None]:
        # NEXT first: a flip in between is seen as two equal names, not as an old CURRENT without NEXT.
        names = [self.pointer(pointer) for pointer in (NEXT, CURRENT)]
        target, current = (name if name is not None and self._exists(name) else None for name in names)
        return current, target

    def _exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _lost_current(self, fingerprint: str, *, but: str | None) -> str | None:
        # Generations with this fingerprint come first, then those with the most files. The result may hold documents
        # that are no longer on the disk.
        ranked: list[tuple[bool, int, str]] = []
        for name in self.leftovers()[0]:
            with suppress(StoreCorrupt, StoreUnreadable):
                reader = self.open_named(name) if name != but else None
                if reader is not None:
                    with closing(reader):
                        ranked.append((reader.meta("fingerprint") == fingerprint, reader.counts().files, name))
        ranked = [entry for entry in ranked if entry[1]]
        return max(ranked)[2] if ranked else None

    def _create(self, fingerprint: Fingerprint, takeover: str | None) -> str:
        name = f"{new_name(fingerprint)}.sqlite"
        create_generation(
            self.folder / name,
            self._options,
            fingerprint=fingerprint.digest,
            description=fingerprint.description,
            takeover=takeover,
        )
        return name

    def _require_room(self, current: str) -> None:
        try:
            require_room(self.folder / current)
        except NoRoom:
            self._sweep(0.0, KEPT_CORRUPT_FILES)
            require_room(self.folder / current)

    def _opened(self, name: str) -> Store:
        return SqliteStore(self.folder / name, self._options)

    def _is_sound(self, name: str) -> bool:
        try:
            reader = self.open_named(name)
            if reader is None:
                return True
            with closing(reader):
                return not reader.check()
        except StoreCorrupt:
            return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            # Memory is private to its owner, like the transcripts.
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.folder / "lock"):
                yield
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise StoreFull(f"no space left for {self.folder}; free some and indexing goes on") from error
            raise StoreUnreadable(
                f"{self.folder} cannot be changed ({error.strerror}); check that it exists and its permissions"
            ) from error
