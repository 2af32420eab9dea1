"""Consent of the user to the cost of embedding old texts: by an option, or by an answer on a terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import click

from memory.embedding.consent import Consents, needs_consent
from memory.index.estimate import Estimate, estimate_of
from memory.status.condition_texts import counted
from recalld.runs.estimate import cost_sentence
from recalld.runs.outcome import Outcome, Report
from recalld.runs.run import Run
from recalld.runs.status import size
from recalld.terminal_text import printable_name
from recalld.wiring import AgentIndex
from schemas.conditions import ConditionCode
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings

#: Bytes on the disk of a chunk besides its vector, and of a vector's dimension, in index and cache.
_CHUNK_BYTES, _DIMENSION_BYTES, _DIMENSIONS = 2_600, 6, 1_536


class Allowance(NamedTuple):
    """Consent by options: to all that a command asks for (`yes`), or to a part of it."""

    yes: bool
    max_tokens: int | None
    max_dollars: float | None

    def tokens(self, cost: Estimate) -> int | None:
        """Return the tokens of this work that the options allow, None without an option."""
        if self.max_dollars is not None and not cost.price:
            problem = f"--max-dollars needs the price of {cost.model}, which is not known"
            raise UserError(f"{problem}: set remote.price_per_million_tokens, or use --max-tokens", exit_code=2)
        dollars = math.inf if self.max_dollars is None or not cost.price else self.max_dollars / cost.price * 1e6
        tokens = min(cost.tokens, dollars, math.inf if self.max_tokens is None else self.max_tokens)
        return int(tokens) if self.yes or (self.max_tokens, self.max_dollars) != (None, None) else None


def consents(
    settings: Settings, agent: AgentSettings, cost: Estimate, *, allowance: Allowance, about: str = ""
) -> bool:
    """Grant the cost of embedding an agent's texts if it needs a consent and the user gives one.

    Return True if the user granted something. Without an option, a terminal asks; `about` names the documents.
    """
    choice = AgentIndex(settings, agent).choice
    given = Consents.of(settings, agent.id)
    if not cost.to_embed or not needs_consent(settings, agent, choice.provider):
        return False
    tokens = allowance.tokens(cost)
    if tokens is None and not given.allows_unasked(cost.tokens, cost.price) and sys.stdin.isatty():
        disk = cost.chunks * (_CHUNK_BYTES + _DIMENSION_BYTES * _DIMENSIONS)
        sentence = f"{agent.id}: {about}{cost_sentence(cost)}, about {size(disk)} on the disk"
        click.echo(f"{printable_name(sentence)}. Embed them now? [y/N] ", nl=False, err=True)
        # The end of the input is a no.
        tokens = cost.tokens if sys.stdin.readline().strip().lower() in {"y", "yes"} else None
    if tokens:
        given.grant(choice.identity, tokens)
    return bool(tokens)


def with_consent(run: Run, first: Callable[[], Report], *, allowance: Allowance) -> Report:
    """Run, ask for the cost of the texts that wait for a consent then, and embed them if the user consents."""
    report = first()
    if report.interrupted or not sum(_asks(run, outcome, allowance) for outcome in report.outcomes):
        return report
    before, report = report, run.by_workers(lambda: ())
    outcomes = zip(before.outcomes, report.outcomes, strict=True)
    return replace(report, outcomes=[replace(new, spent=[*old.spent, *new.spent]) for old, new in outcomes])


def _asks(run: Run, outcome: Outcome, allowance: Allowance) -> bool:
    condition = outcome.condition
    if condition is None or condition.code is not ConditionCode.VECTORS_HELD:
        return False
    agent = run.settings.agent(outcome.agent)
    texts, tokens = (int(condition.params[name]) for name in ("texts", "tokens"))
    cost = estimate_of(AgentIndex(run.settings, agent).choice, agent, texts=texts, tokens=tokens)
    about = f"{counted(outcome.counts.files, 'document')}, found by keywords; "
    return consents(run.settings, agent, cost, allowance=allowance, about=about)
