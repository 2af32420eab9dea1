"""What `recalld backfill` says, in sentences and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from memory.embedding.selection import ProviderChoice
from memory.status.condition_texts import counted
from recalld.runs.backfill_plan import BackfillPlan
from recalld.runs.backfill_result import BackfillResult
from recalld.runs.estimate import cost_body, cost_sentence
from recalld.status_view import size

#: Transcripts that were left are listed up to this number; the rest is only counted.
_LISTED = 20


def plan_sentence(plan: BackfillPlan) -> str:
    """What is to be done, in one line."""
    cost = plan.estimate
    parts = [f"{counted(len(plan.wanted), 'transcript')} to index ({size(plan.size)})"]
    parts += [f"{plan.unchanged:,} indexed already"] if plan.unchanged else []
    parts += [f"{plan.found.left_out:,} left out"] if plan.found.left_out else []
    parts += [f"{count:,} {kind} left out by the settings" for kind, count in sorted(plan.not_wanted.items())]
    parts += [f"{counted(len(plan.others), 'other document')} as the index is new"] if plan.others else []
    parts += [f"{cost.failed:,} cannot be read"] if cost.failed else []
    if not plan.documents and not cost.to_embed:
        return f"{plan.agent.id}: {', '.join(parts)}"
    parts += [counted(cost.messages, "message"), counted(cost.chunks, "chunk")]
    return f"{plan.agent.id}: {', '.join(parts)}; {cost_sentence(plan.choice, cost)}"


def result_lines(plan: BackfillPlan, result: BackfillResult) -> Iterator[str]:
    """What was done, for standard output."""
    counts, states = result.outcome.counts, result.states
    vectors = f", {counts.vectors_ready:,} with vectors" if plan.choice.provider is not None else ""
    done = f"{states.indexed:,} of {counted(len(plan.wanted), 'transcript')} indexed in {result.seconds:.1f} s"
    if not plan.wanted:
        done = "no transcript had to be read"
    yield f"{plan.agent.id}: {done}; the index has {counts.chunks:,} chunks{vectors}"
    for line in result.spent:
        yield f"  spent: {line}"
    if result.outcome.in_jobs:
        yield (
            f"  {counts.vectors_pending:,} chunks wait in batch jobs (`recalld jobs`); `recalld up`, or this command "
            "again, takes in what they bring"
        )


def trouble_lines(result: BackfillResult) -> Iterator[str]:
    """What was not done and why, for standard error."""
    states, outcome = result.states, result.outcome
    for key, reason in states.failed.items():
        yield f"  failed: {key.path}: {reason}"
    if states.failed:
        yield "  `recalld dead show PATH` says more; mend the file and run this command again"
    if not result.interrupted:
        for key in states.left[:_LISTED]:
            yield f"  not indexed: {key.path}: it is gone, or is being written; run this command again"
        if len(states.left) > _LISTED:
            yield f"  and {len(states.left) - _LISTED:,} more"
    if outcome.sentence:
        yield f"  {outcome.sentence}"
    if result.interrupted:
        how = "recalld up goes on with what is queued" if result.detached else "what was done is kept"
        rest = f"; {counted(result.held_back, 'document')} not queued yet" if result.held_back else ""
        yield f"recalld: stopped waiting; {how}{rest}; the same command resumes"


def body_of(plan: BackfillPlan, result: BackfillResult | None) -> dict[str, Any]:
    """Everything as JSON. Without a result it was a dry run."""
    return {
        "ok": not plan.problems and (result is None or result.exit_code == 0),
        "dryRun": result is None,
        "interrupted": result is not None and result.interrupted,
        "error": None,
        "agent": plan.agent.id,
        "problems": list(plan.problems),
        "transcripts": len(plan.wanted),
        "unchanged": plan.unchanged,
        "leftOut": plan.found.left_out,
        "notWanted": dict(plan.not_wanted),
        "others": len(plan.others),
        "bytes": plan.size,
        "provider": plan.choice.name,
        "model": _model(plan.choice),
        "estimate": {
            "failed": plan.estimate.failed,
            "messages": plan.estimate.messages,
            "chunks": plan.estimate.chunks,
            **cost_body(plan.estimate),
        },
        "result": _result_body(result) if result is not None else None,
    }


def error_body(message: str, *, interrupted: bool = False) -> dict[str, Any]:
    """The JSON of a command that came to nothing."""
    return {"ok": False, "dryRun": False, "interrupted": interrupted, "error": message, "problems": [], "result": None}


def _result_body(result: BackfillResult) -> dict[str, Any]:
    counts, states = result.outcome.counts, result.states
    return {
        "indexed": states.indexed,
        "failed": [{"path": key.path, "reason": reason} for key, reason in states.failed.items()],
        "left": len(states.left),
        "chunks": counts.chunks,
        "vectorsReady": counts.vectors_ready,
        "vectorsPending": counts.vectors_pending,
        "stopped": result.outcome.stopped,
        "code": result.outcome.condition.code if result.outcome.condition is not None else None,
        "inBatchJobs": result.outcome.in_jobs,
        "spent": [asdict(usage) for usage in result.usage],
        "seconds": round(result.seconds, 3),
    }


def _model(choice: ProviderChoice) -> str | None:
    return choice.provider.model if choice.provider is not None else None
