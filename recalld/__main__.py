"""Entry point of the `recalld` command."""

from __future__ import annotations

import os
import sys

#: Objects made between two runs of the cyclic garbage collector. Importing makes many, and all of them stay: with the
#: interpreter's 700 a command that lasts half a second spends a seventh of it on looking at them.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line and leave with its exit code."""
    _prefer_own_modules()
    # Files of a home are readable by their owner only, also those of the private broker and of SQLite.
    os.umask(0o077)
    if "hook" in sys.argv:
        # An agent's program waits for its hooks: they are taken before anything large is imported.
        from recalld.hooks.entry import take_if_hook

        if take_if_hook(sys.argv[1:], os.environ):
            return
    import gc

    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # One BLAS thread a process, decided before anything imports numpy (later is too late). The pool would start a
    # thread for every core of the machine; worker threads that each do that fight over the cores and over memory,
    # and the small matrices of one search are multiplied faster by a single thread.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    from recalld.cli import COMPLETION_VARIABLE, run

    in_colour = not os.environ.get("NO_COLOR")  # https://no-color.org
    code = run(sys.argv[1:], in_colour=in_colour, completion=os.environ.get(COMPLETION_VARIABLE))
    import threading

    if any(thread.name == "load-model" for thread in threading.enumerate()):
        # The library that loads a model (`memory.search.query_vectors`) may crash in an interpreter that is torn down.
        os._exit(code)
    sys.exit(code)


def _prefer_own_modules() -> None:
    """Move the current folder and the folders of PYTHONPATH to the end of the path on which Python finds modules.

    They may be a project's, with a `schemas.py`, a `memory/` or a `redis/` of its own.
    """
    own_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        folders = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]  # an empty name is the current folder
        project_folders = {*map(os.path.abspath, folders)} - {own_folder}
        folders = sorted(sys.path, key=lambda folder: os.path.abspath(folder) in project_folders)
    except OSError:
        folders = [folder for folder in sys.path if os.path.isabs(folder)]  # the current folder is gone
    # An installation's folder stays behind Python's own modules.
    if os.path.basename(own_folder) not in ("site-packages", "dist-packages"):
        folders = [own_folder, *(folder for folder in folders if folder != own_folder)]
    sys.path[:] = folders


if __name__ == "__main__":
    main()
