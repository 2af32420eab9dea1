"""What makes status not ok is a problem of the doctor, too: whatever no check of its own has said already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory.agent_status import PENDING_TOO_LONG_SECONDS
from recalld.doctor.finding import Finding, Level
from recalld.status_view import duration
from schemas.status import AgentStatus, Status, TroubleState

#: What to do about a trouble, by its part, where the sentence itself does not say all of it.
_REMEDIES = {
    "files": "mend that; `recalld up` sees it by itself, `recalld index` looks when it is told to",
    "reconcile": "mend that; `recalld up` sees it by itself, `recalld index` looks when it is told to",
    "build": "`recalld index` goes on with it",
    "clock": "set the clocks (`timedatectl set-ntp true`)",
    "broker": "give it the room that it lacks, or name another one (REDIS_URL, broker.url)",
    "keywords": "install apsw from its wheel: `pip install --force-reinstall --only-binary :all: apsw`",
    "vectors": "correct `provider` in the settings; keywords work meanwhile",
    "embedding": "correct `provider` in the settings; keywords work meanwhile",
}

#: Checks of what all agents share and cannot be ok without.
_SHARED = {"broker", "processes", "settings", "version"}

#: What to do about any other trouble.
_LOOK = "the folder log in the home says more; `recalld status` says when it is over"


def agreeing_findings(status: Status, said: Sequence[Finding]) -> Iterator[Finding]:
    """For each agent that is not ok a problem for every reason that is not among those `said`; at least one.

    So `doctor` never calls well what `status` does not.
    """
    for agent in status.agents:
        if agent.ok:
            continue
        about = [one for one in said if one.level is Level.PROBLEM and one.may_concern(agent.agent)]
        found = list(_unsaid(agent, about))
        yield from found
        if (
            not found
            and not agent.troubles
            and not any(one.is_about(agent.agent) or one.check in _SHARED for one in about)
        ):
            yield _otherwise(agent)


def _unsaid(agent: AgentStatus, about: Sequence[Finding]) -> Iterator[Finding]:
    def problem(check: str, message: str, action: str) -> Finding:
        return Finding(check, Level.PROBLEM, f"{agent.agent}: {message}", action, agent=agent.agent)

    for trouble in agent.troubles:
        if not any(_says(one, trouble) for one in about):
            remedy = "`recalld doctor --online` asks it now" if trouble.part.startswith("provider ") else _LOOK
            yield problem(trouble.part, trouble.message, _REMEDIES.get(trouble.part, remedy))
    checks = {one.check for one in about} | {part for one in about for part in one.speaks_for}
    queue, index = agent.queue, agent.index
    if (queue.oldest_seconds or 0.0) > PENDING_TOO_LONG_SECONDS and not checks & {"processes", "broker"}:
        waits = f"{queue.pending} document{' waits' if queue.pending == 1 else 's wait'}"
        yield problem(
            "queue",
            f"{waits}, the oldest for {duration(queue.oldest_seconds or 0.0)}",
            "`recalld up` (or `recalld work`) works on them; when it runs, the folder log in the home says what holds "
            "it up",
        )
    if not index.identity_matches and index.building is None and "index" not in checks:
        yield problem("index", "the index was made with other settings", "`recalld index` builds it anew")


def _otherwise(agent: AgentStatus) -> Finding:
    """The reason that status does not name."""
    waiting = agent.index.vectors_pending
    message, action = "status is not ok", f"`recalld status --deep --agent {agent.agent}` says all that is known"
    if waiting:
        which = f"{waiting} vector{' waits' if waiting == 1 else 's wait'}"
        message = f"{which}, and {'none comes in' if agent.queue.reachable else 'nothing runs that would get them'}"
        action = f"`recalld up`, or `recalld index`, gets them; when it runs: {_LOOK}"
    return Finding("status", Level.PROBLEM, f"{agent.agent}: {message}", action, agent=agent.agent)


def _says(finding: Finding, trouble: TroubleState) -> bool:
    return trouble.part in finding.speaks_for or trouble.message in finding.message
