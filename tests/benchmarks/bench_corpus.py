"""Costs of indexing a workspace of notes, beside this machine's floor measured in the same run.

    python -m tests.benchmarks.bench_corpus [--megabytes 20] [--latency-ms 30] [--repeats 3]

An endpoint in this process embeds at once with 1536 dimensions. Printed: a cold `recalld index`, its requests, peak
memory and disk; the floor (the same chunks, vectors and keywords inserted into the same three tables in one transaction
by one process that does nothing else); nothing changed; one changed note; the same through `recalld up`; and a cold
`index` again when the endpoint takes so many milliseconds a request.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import apsw
import sqlite_vec

from memory.chunking.segmenting import index_text
from tests.benchmarks.frame import Home, InstantServer, notes, options


def main() -> None:
    """Run everything and print the table."""
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, InstantServer() as server:
        folder = Path(name)
        workspace = folder / "workspace"
        (workspace / "memory").mkdir(parents=True)
        texts = notes(arguments.megabytes, share_of_chinese=0.2)
        for number, text in enumerate(texts):
            (workspace / "memory" / f"{number:05}.md").write_text(f"# Note {number}\n\n{text}", "utf-8")
        row("notes", f"{len(texts):,}, {sum(len(text.encode()) for text in texts) / 1e6:.1f} MB")
        settings = f'{server.settings}[[agents]]\nid = "main"\nworkspace = "{workspace}"\n'
        home = Home(folder / "cold", settings)
        cold = measure_cold(home, server)
        measure_changes(home, server, workspace / "memory", arguments.repeats)
        measure_up(Home(folder / "up", settings), cold)
        walls: dict[float, list[float]] = {0.0: [], arguments.latency_ms: []}
        for number in range(arguments.repeats):
            for latency, times in walls.items():
                server.latency = latency / 1000
                times.append(Home(folder / f"{number}-{latency}", settings).run("index").wall)
        quick, slow = map(statistics.median, walls.values())
        row(f"{arguments.latency_ms:g} ms a request", f"{slow:.2f} s wall, {slow / quick:.2f} times as long")


def measure_cold(home: Home, server: InstantServer) -> float:
    """Index all notes, and insert the same rows in one transaction; return the seconds of the first."""
    spent = time.process_time()
    cold = home.run("index", "--json")
    spent = time.process_time() - spent
    [agent] = cold.json["agents"]
    row("cold index", f"{cold.wall:.2f} s wall, {cold.cpu:.2f} s CPU, peak {cold.peak_mb:.0f} MB")
    row("  of it", f"{agent['chunks']:,} chunks; {server.sent()}; the server itself used {spent:.2f} s CPU")
    parts = {part.name: megabytes(part) for part in home.path.iterdir() if part.is_dir()}
    row("disk", f"{megabytes(home.path):.0f} MB ({', '.join(f'{name} {size:.0f}' for name, size in parts.items())})")
    floor = floor_seconds(home)
    row("floor (one transaction, same rows)", f"{floor:.2f} s wall")
    row("cold / (6 x floor + 2 x server)", f"{cold.wall / (6 * floor + 2 * spent):.2f}")
    return cold.wall


def measure_changes(home: Home, server: InstantServer, folder: Path, repeats: int) -> None:
    """Index again when nothing has changed, and when one note has."""
    nothing = [home.run("index") for _ in range(repeats)]
    server.reset()
    note = sorted(folder.iterdir())[0]
    changed = []
    for number in range(repeats):
        note.write_text(f"{note.read_text('utf-8')}\nOne more line, number {number}.\n", "utf-8")
        changed.append(home.run("index"))
    for label, runs in (("nothing changed", nothing), ("one note changed", changed)):
        wall, cpu = (statistics.median(getattr(run, kind) for run in runs) for kind in ("wall", "cpu"))
        row(label, f"{wall:.2f} s wall, {cpu:.2f} s CPU")
    row(f"  embedded for {repeats} changes", server.sent())


def measure_up(home: Home, cold: float) -> None:
    """Time from starting `up` in a fresh home until everything is indexed."""
    begun = time.monotonic()
    with home.running("up", "--port", "0"):
        service = home.service()
        while not service.settled():
            time.sleep(0.1)
        seconds = time.monotonic() - begun
    row("through `up`", f"{seconds:.2f} s wall ({seconds / cold:.2f} x index)")


def floor_seconds(home: Home) -> float:
    """Insert the index's rows into the same tables of a new file, in one transaction with a 64 MB page cache."""
    source = connect(next((home.path / "indexes").glob("*/*.sqlite")))
    chunks = list(source.execute("SELECT * FROM chunks"))
    columns = [name for _, name, *_ in source.execute("PRAGMA table_info(chunks)")]
    vectors = list(source.execute("SELECT rowid, embedding FROM chunks_vec"))
    tables = dict(source.execute("SELECT name, sql FROM sqlite_master"))
    source.close()
    identifier, text = columns.index("id"), columns.index("text")
    target = connect(home.folder / "floor.sqlite")
    for pragma in ("page_size = 16384", "journal_mode = WAL", "synchronous = NORMAL", "cache_size = -65536"):
        target.execute(f"PRAGMA {pragma}")
    begun = time.monotonic()
    with target:
        for name in ("chunks", "chunks_vec", "chunks_fts"):
            target.execute(tables[name])
        target.executemany(f"INSERT INTO chunks VALUES ({', '.join('?' * len(columns))})", chunks)
        keywords = ((chunk[identifier], index_text(chunk[text])) for chunk in chunks)
        target.executemany("INSERT INTO chunks_fts (rowid, text) VALUES (?, ?)", keywords)
        target.executemany("INSERT INTO chunks_vec (rowid, embedding) VALUES (?, ?)", vectors)
    seconds = time.monotonic() - begun
    target.close()
    return seconds


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    return connection


def megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def row(name: str, value: str) -> None:
    print(f"{name:36s} {value}", flush=True)


if __name__ == "__main__":
    main()
