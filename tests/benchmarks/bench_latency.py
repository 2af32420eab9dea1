"""Costs of a slow network: the first index with a slow and with a quick embedding endpoint.

    python tests/benchmarks/bench_latency.py WORKSPACE --embed-url http://127.0.0.1:8901/v1 [--latency-ms 30]

The endpoint must take POST /config {"latency_ms": ...}, POST /reset and GET /stats, as the test server does. Runs
alternate, each in a home of its own; printed are medians and their ratio, and whether a text was embedded twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import urllib.request
from pathlib import Path

from bench_corpus import Bench, Run, row


def main() -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--embed-url", required=True, help="base URL of the endpoint, ending in /v1")
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--provider", default="openai")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-latency-") as folder:
        bench = Bench(arguments, Path(folder))
        runs: dict[float, list[Run]] = {0.0: [], arguments.latency_ms: []}
        for number in range(arguments.repeats):
            for latency in runs:
                post(bench, "config", {"latency_ms": latency})
                bench.reset()
                post(bench, "reset", {})
                run = bench.recalld(
                    Path(folder) / f"home-{number}-{latency}", "index", "--workspace", str(bench.workspace), "--json"
                )
                stats = bench.stats()
                runs[latency].append(run)
                row(
                    f"  {latency:g} ms a request",
                    f"{run.wall:.2f} s wall, {run.cpu:.2f} s CPU, {stats['requests']} requests, at most "
                    f"{stats['max_inflight']} in flight, {stats['inputs']} inputs, {stats['distinct']} distinct",
                )
        post(bench, "config", {"latency_ms": 0})
        plain, slow = (statistics.median(run.wall for run in runs[latency]) for latency in runs)
        row("median without latency", f"{plain:.2f} s")
        row(f"median with {arguments.latency_ms:g} ms", f"{slow:.2f} s, {slow / plain:.2f} times as long")


def post(bench: Bench, path: str, body: dict[str, float]) -> None:
    url = bench.stats_url(path)
    assert url is not None
    urllib.request.urlopen(
        urllib.request.Request(url, data=json.dumps(body).encode(), method="POST"), timeout=5
    ).close()


if __name__ == "__main__":
    main()
