"""Costs of a backfill of old transcripts: time, memory of the command with its own workers, and texts sent.

    python -m tests.benchmarks.bench_backfill [--megabytes 200] [--file-megabytes 2] [--said 12] [--dimensions 1536]

Generates transcripts of all formats as real ones are: so many percent were said, the rest are results of tools. Then
`recalld backfill` runs as a child in a home of its own, against an endpoint in this process that answers at once.
Printed are the estimate, seconds, MB/s, the child's peak memory (its broker aside) and inputs against distinct texts;
then what the same command costs when there is nothing left to do.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.frame import Home, InstantServer, options
from tests.transcript_files import BEGUN, FORMATS, conversation, message_line

MEGABYTE = 1_000_000

#: Messages between two results of tools.
MESSAGES_A_TOOL = 2


def main() -> None:
    """Generate, run twice, print."""
    parser = options(__doc__)
    parser.add_argument("--megabytes", type=float, default=200.0)
    parser.add_argument("--file-megabytes", type=float, default=2.0)
    parser.add_argument("--said", type=float, default=12.0, help="percent")
    parser.add_argument("--dimensions", type=int, default=1536)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="recalld-bench-") as name, InstantServer(arguments.dimensions) as server:
        folder = Path(name)
        (folder / "workspace").mkdir()
        size, said = write_transcripts(
            folder / "old", arguments.megabytes, arguments.file_megabytes, share=arguments.said / 100
        )
        print(f"generated  {size / MEGABYTE:,.0f} MB, {said / size:.1%} of it said")
        home = Home(folder, f'{server.settings}[[agents]]\nid = "main"\nworkspace = "{folder / "workspace"}"\n')
        for label in ("backfill", "again"):
            run = home.run("backfill", str(folder / "old"), "--json")
            estimate, outcome = run.json["estimate"], run.json["result"]
            print(
                f"{label:<9}  {run.wall:.1f} s wall, {run.cpu:.1f} s CPU, {size / MEGABYTE / run.wall:.1f} MB/s, "
                f"peak {run.peak_mb:.0f} MB; {run.json['transcripts']:,} transcripts"
            )
            print(
                f"           estimated {estimate['messages']:,} messages, {estimate['chunks']:,} chunks, "
                f"{estimate['toEmbed']:,} inputs; indexed {outcome['chunks']:,} chunks"
            )
            print(f"           so far {server.sent()}")


def write_transcripts(folder: Path, megabytes: float, file_megabytes: float, *, share: float) -> tuple[int, int]:
    """Write transcripts of all formats; return their bytes, and how many of them were said."""
    noise = "".join(random.Random(0).choices("abcdefghij klmnop(qrst)=uvwxyz_\n\t0123456789", k=MEGABYTE))
    sizes = [
        write_transcript(
            folder / f"{number % 20}" / f"{number:04}.jsonl", FORMATS[number % 4], number, noise, file_megabytes, share
        )
        for number in range(max(1, round(megabytes / file_megabytes)))
    ]
    return sum(size for size, _ in sizes), sum(said for _, said in sizes)


def write_transcript(path: Path, name: str, seed: int, noise: str, megabytes: float, share: float) -> tuple[int, int]:
    """Write one transcript of about that size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    said = 0
    # A turn says some 500 bytes.
    messages = conversation(int(megabytes * MEGABYTE * share / 480), seed=seed)
    with path.open("wb") as file:
        for place, message in enumerate(messages):
            said += len(message.text.encode())
            file.write(message_line(name, message.role, message.text, at=message.at))
            if place % MESSAGES_A_TOOL == 0:
                lacking = max(0, int(said / share) - file.tell())
                start = source.randrange(MEGABYTE - 1)
                file.write(tool_line(name, (noise[start:] + noise)[: min(lacking, MEGABYTE)]))
        return file.tell(), said


def tool_line(name: str, output: str) -> bytes:
    """Return a tool's result as the named format writes it."""
    at = BEGUN.isoformat()
    block = [{"type": "text", "text": output}]
    formats: dict[str, dict[str, Any]] = {
        "openclaw": {"type": "message", "id": "t", "message": {"role": "toolResult", "content": block}},
        "claude-code": {
            "type": "user",
            "uuid": "t",
            "sessionId": "s",
            "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": output}]},
        },
        "codex": {"type": "response_item", "payload": {"type": "function_call_output", "output": output}},
        "plain": {"role": "tool", "content": output},
    }
    return json.dumps({"timestamp": at, **formats[name]}).encode() + b"\n"


if __name__ == "__main__":
    main()
