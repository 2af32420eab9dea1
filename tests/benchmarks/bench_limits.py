"""Requests and time of a backfill whose endpoint answers a few requests a minute and refuses the others with 429.

    python -m tests.benchmarks.bench_limits [--a-minute 5] [--minute 5] [--configured] [--megabytes 125] [--said 4]

Generates transcripts of which so many percent were said, and runs `recalld backfill` once, in a home of its own. A
minute of the endpoint lasts `--minute` seconds. Unless `--configured`, the settings name no limit, so that the command
learns it from the refusals; with it, they name the endpoint's, which needs minutes of 60 seconds. Printed are the
requests that are needed and those that were sent, and the minutes of the endpoint between the first and the last one,
beside those of a client that sends only full requests: in bursts, and evenly.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_backfill import MEGABYTE, write_transcripts
from tests.benchmarks.frame import Home, options
from tests.daemon import REPOSITORY, clean_environment
from tests.embedding_server import EmbeddingServer


def main() -> None:
    """Generate, run once, print."""
    parser = options(__doc__)
    parser.add_argument("--a-minute", type=int, default=5)
    parser.add_argument("--minute", type=float, default=5.0, help="seconds")
    parser.add_argument("--configured", action="store_true")
    parser.add_argument("--megabytes", type=float, default=125.0)
    parser.add_argument("--said", type=float, default=4.0, help="percent")
    arguments = parser.parse_args()
    limit, minute = arguments.a_minute, arguments.minute
    if arguments.configured and minute != 60.0:
        parser.error("a limit in the settings counts minutes of 60 seconds: add --minute 60")
    with (
        tempfile.TemporaryDirectory(prefix="recalld-bench-") as name,
        EmbeddingServer(a_minute=limit, minute_seconds=minute) as server,
    ):
        folder = Path(name)
        (folder / "workspace").mkdir()
        size, said = write_transcripts(folder / "old", arguments.megabytes, 2.0, share=arguments.said / 100)
        print(f"generated  {size / MEGABYTE:,.0f} MB, {said / size:.1%} of it said")
        settings = f'provider = "openai"\nremote.base_url = "{server.url}"\nremote.api_key = "benchmark"\n'
        settings += f"remote.requests_per_minute = {limit}\n" if arguments.configured else ""
        home = Home(folder, f'{settings}[[agents]]\nid = "main"\nworkspace = "{folder / "workspace"}"\n')
        began_at = time.monotonic()
        run = subprocess.run(
            home.command("backfill", str(folder / "old")),
            cwd=REPOSITORY,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"exit code  {run.returncode}, {time.monotonic() - began_at:.1f} s\n{run.stdout}{run.stderr}")
        full_tokens = 100_000
        tokens = sum(len(text.encode()) for text in server.texts) / 4
        needed, refused = -int(-tokens // full_tokens), server.failures[429]
        print(f"requests   {needed} needed, {server.requests} sent, {refused} of them refused")
        print(f"texts      {server.inputs:,} sent, {server.distinct:,} different")
        elapsed = (server.log[-1].started - server.log[0].started) / minute
        burst, evenly = (needed - 1) // limit, (needed - 1) / limit
        print(f"minutes    {elapsed:.2f} of the endpoint; in bursts {burst}, evenly {evenly:.2f}")


if __name__ == "__main__":
    main()
