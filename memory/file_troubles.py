"""What is wrong with an agent's files, each once: it is found out anew by every look, and whoever compares files and
index has told all of it in one trouble, with the time since when. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory.redaction import redact
from schemas.ports import Trouble
from schemas.status import TroubleState

#: The part that tells what is wrong with the files, sentence after sentence.
_COMPARING = "reconcile"
_BETWEEN = "; "


def file_troubles(
    problems: Sequence[str], told: Sequence[Trouble], now: float
) -> tuple[list[TroubleState], Sequence[Trouble]]:
    """A trouble for each problem, since when it was told, and what was told of anything else.

    `problems` are of a look just now (`now` is Unix time), one sentence each.
    """
    since: dict[str, float] = {}
    others = []
    for trouble in told:
        left = trouble.message
        # The longest first, as one may be the beginning of another. They are told with their secrets masked.
        for problem in sorted(problems, key=len, reverse=True) if trouble.part == _COMPARING else ():
            masked = redact(problem)
            if masked in left:
                left = left.replace(masked, "")
                since[problem] = trouble.since
        if left == trouble.message:
            others.append(trouble)
        elif rest := _BETWEEN.join(filter(None, left.split(_BETWEEN))):
            others.append(replace(trouble, message=rest))
    return [TroubleState(part="files", message=one, since=since.get(one, now)) for one in problems], others
