"""Consent of the user to the cost of embedding old texts: by an option, or by an answer on a terminal."""

from __future__ import annotations

import math
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import click

from memory.embedding.consent import Consents, needs_consent
from memory.index.estimate import Estimate, estimate_of, noted_in
from memory.status.condition_texts import counted
from recalld.runs.estimate import cost_sentence
from recalld.runs.outcome import Outcome, Report
from recalld.runs.run import Run
from recalld.terminal_text import printable_name
from recalld.wiring import AgentIndex
from schemas.conditions import ConditionCode
from schemas.errors import UserError
from schemas.settings import AgentSettings, Settings


class Allowance(NamedTuple):
    """Consent by options: to all that a command asks for (`yes`), or to a part of it."""

    yes: bool
    max_tokens: int | None
    max_dollars: float | None

    @property
    def is_limit(self) -> bool:
        """Return True if it consents to a part only."""
        return (self.max_tokens, self.max_dollars) != (None, None)

    def tokens(self, cost: Estimate) -> int | None:
        """Return the tokens of this work that the options allow, None without an option."""
        if self.max_dollars is not None and not cost.price:
            problem = f"--max-dollars needs the price of {cost.model}, which is not known"
            raise UserError(f"{problem}: set remote.price_per_million_tokens, or use --max-tokens", exit_code=2)
        dollars = math.inf if self.max_dollars is None or not cost.price else self.max_dollars / cost.price * 1e6
        tokens = min(cost.tokens - cost.released, dollars, math.inf if self.max_tokens is None else self.max_tokens)
        return int(tokens) if self.yes or self.is_limit else None


@dataclass(slots=True)
class Question:
    """Question on a terminal for the consent to embed some tokens; `answer` is None before the user gives one."""

    given: Consents
    identity: str
    tokens: int
    answer: bool | None = None

    @classmethod
    def about(
        cls, settings: Settings, agent: AgentSettings, cost: Estimate, *, allowance: Allowance, documents: str = ""
    ) -> Question | None:
        """Ask for the cost of embedding an agent's texts; None if it needs no consent.

        An option is an answer. The answer is no where no terminal can ask. `documents` names the documents.
        """
        choice = AgentIndex(settings, agent).choice
        question = cls(Consents.of(settings, agent.id), choice.identity, cost.tokens - cost.released)
        if not cost.to_embed or not needs_consent(settings, agent, choice.provider):
            return None
        if (tokens := allowance.tokens(cost)) is not None:
            question.tokens = tokens
            question.reply(is_yes=True)
            return question
        more = question.tokens - question.given.remaining(choice.identity)
        if more <= 0 or question.given.allows_unasked(question.tokens, cost.price):
            return None
        if not sys.stdin.isatty():
            question.answer = False
            return question
        sentence = printable_name(f"{agent.id}: {documents}{cost_sentence(cost)}")
        click.echo(f"{sentence}. Embed them now? [y/N] ", nl=False, err=True)
        return question

    def look(self) -> bool:
        """Take an answer that the user has given by now; return True if it is a yes."""
        is_open = self.answer is None and bool(select.select([sys.stdin], [], [], 0)[0])
        return is_open and self.wait()

    def wait(self) -> bool:
        """Wait for the answer; return True if it is a yes."""
        if self.answer is None:
            # The end of the input is a no.
            self.reply(is_yes=sys.stdin.readline().strip().lower() in {"y", "yes"})
        return bool(self.answer)

    def reply(self, *, is_yes: bool) -> None:
        """Take an answer, and grant the tokens with a yes."""
        self.answer = is_yes
        if is_yes and self.tokens:
            self.given.grant(self.identity, self.tokens)


def with_consent(run: Run, first: Callable[[], Report], *, allowance: Allowance) -> Report:
    """Run, ask for the cost of the texts that wait for a consent then, and embed them if the user consents.

    A question that is still open is asked anew, with the cost that is known now. After a no, it is not.
    """
    report = first()
    is_no = run.question is not None and run.question.answer is False
    if report.interrupted or is_no or not sum(_asks(run, outcome, allowance) for outcome in report.outcomes):
        return report
    run.question = None
    before, report = report, run.by_workers(lambda: ())
    outcomes = zip(before.outcomes, report.outcomes, strict=True)
    return replace(report, outcomes=[replace(new, spent=[*old.spent, *new.spent]) for old, new in outcomes])


def _asks(run: Run, outcome: Outcome, allowance: Allowance) -> bool:
    condition = outcome.condition
    if condition is None or condition.code is not ConditionCode.VECTORS_HELD:
        return False
    index = next(index for index in run.indexes if index.agent.id == outcome.agent)
    texts, tokens = (int(condition.params[name]) for name in ("texts", "tokens"))
    noted = noted_in(index.reader())
    cost = estimate_of(index.choice, index.agent, texts=texts, tokens=tokens, noted=noted)
    about = f"{counted(outcome.counts.files, 'document')}, found by keywords; "
    question = Question.about(run.settings, index.agent, cost, allowance=allowance, documents=about)
    return question is not None and question.wait()
