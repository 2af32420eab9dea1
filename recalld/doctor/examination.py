"""Examination by the doctor: checks, conditions of status, and what was healed, as JSON and as lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import click

from memory.redaction import REWRITING, is_costly
from memory.search.freshness import GuardedPendingReader
from memory.status.agent import condition_of
from memory.status.condition_texts import part_of
from memory.status.home import build_status
from recalld.doctor import home, machine
from recalld.doctor.finding import Finding, Level, in_common
from recalld.invocation import Invocation, to_type
from recalld.settings.load import program_folders
from recalld.terminal_text import fields, printable_name
from recalld.wiring import BrokerSide, open_broker
from schemas.conditions import OF_PROVIDER, ConditionCode
from schemas.errors import RecalldError, UserError
from schemas.settings import Settings
from schemas.status import Status
from workers.queue.connection import IMPATIENT_SECONDS

_OF_ENDPOINTS = (*OF_PROVIDER, ConditionCode.PROVIDER_SILENT)

_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("!", "yellow"), Level.PROBLEM: ("x", "red")}


def examine(invocation: Invocation, *, online: bool, fix: bool) -> list[Finding]:
    """Look at the machine and the home; with `fix`, heal what can be healed without losing anything.

    Raises:
        UserError: the settings are wrong. Anything else is a finding.
    """
    return [_healed(found) if fix else found for found in _look(invocation, online=online)]


def _healed(found: Finding) -> Finding:
    if found.heal is None:
        return found
    try:
        return replace(found, healed=found.heal())
    except (RecalldError, OSError) as error:
        return replace(found, failed=str(error))


def _look(invocation: Invocation, *, online: bool) -> Iterator[Finding]:
    settings = invocation.settings
    yield machine.open_files(settings)
    yield machine.watches(settings)
    yield from machine.sqlite_parts(settings)
    yield machine.disk(settings)
    yield from home.leftovers(settings)
    yield from machine.hook_findings(program_folders())
    yield from pattern_findings(settings)
    try:
        side = open_broker(settings, answer_seconds=IMPATIENT_SECONDS)
    except UserError as error:
        # A home that cannot be written; no more can be found out.
        yield Finding("home", Level.PROBLEM, str(error), "see above")
        return
    with side:
        yield machine.clock(broker_seconds_ahead=machine.seconds_ahead(side))
        # Before anything is healed: the findings below are of this state.
        chosen = settings.model_copy(update={"agents": invocation.agents() if settings.agents else ()})
        status = build_status(chosen, GuardedPendingReader(side.board), deep=True)
        said: list[Finding] = []
        for finding in _of_status(invocation, side, status, online=online):
            said.append(finding)
            yield finding
        yield from in_common(condition_findings(status, said))


def pattern_findings(settings: Settings) -> Iterator[Finding]:
    """Try each list of redaction patterns that an agent has, once."""
    lists = {agent.redaction.patterns: agent.id for agent in reversed(settings.agents) if agent.redaction.patterns}
    for patterns, agent in lists.items():
        slow = [place for place, pattern in enumerate(patterns, start=1) if is_costly(pattern)]
        if not slow:
            yield Finding.fine("redaction", f"redaction.patterns of {agent}: all are quick")
        for place in slow:
            message = (
                f"pattern {place} of redaction.patterns of {agent} takes more than 0.2 s of processor time for one "
                "line of 1,000 characters: documents with such lines are not indexed"
            )
            yield Finding("redaction", Level.WARNING, message, REWRITING, agent=agent)


def _of_status(invocation: Invocation, side: BrokerSide, status: Status, *, online: bool) -> Iterator[Finding]:
    """Yield the findings of checks that know more than status does."""
    settings = invocation.settings
    yield from machine.broker_findings(settings, status)
    yield from machine.process_findings(settings, side, status)
    now = time.time()
    yield from in_common(
        found
        for agent in settings.agents
        for found in machine.provider_findings(settings, agent, side, online=online, now=now)
    )
    if settings.agents:
        yield from home.index_findings(invocation, status)
    else:
        action = "`recalld up --workspace DIR`, or `recalld discover`"
        yield Finding("agents", Level.WARNING, "no workspace is known yet", action)


def condition_findings(status: Status, said: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a problem for every condition of an agent, but those that a check's problem covers.

    The doctor then never calls an agent well that status does not.
    """
    for agent in status.agents:
        problems = [one for one in said if one.level is Level.PROBLEM and one.may_concern(agent.agent)]
        covered = {code for one in problems for code in one.covers}
        for condition in map(condition_of, agent.troubles):
            if condition.code not in covered:
                check = "provider" if condition.code in _OF_ENDPOINTS else part_of(condition)
                yield Finding.of(check, Level.PROBLEM, condition, agent=agent.agent)


def answer(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the findings as one JSON object."""
    return {"ok": not any(one.is_open for one in findings), "findings": [_body(one) for one in findings]}


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings for a terminal, styled."""
    several = len({one.agent for one in findings} - {None}) > 1
    for found in findings:
        typed = partial(to_type, agent=found.agent if several else None)
        mark, colour = _MARKS[found.level] if found.healed is None else ("healed", "green")
        check = click.style(f"{found.check:<12}", dim=True)
        yield f"{click.style(f'{mark:<7}', fg=colour)}{check}{typed(printable_name(found.message))}"
        if found.healed is not None:
            yield f"{'':<19}{found.healed}"
        elif found.failed is not None:
            yield f"{'':<19}could not be healed: {typed(found.failed)}"
        elif found.action is not None:
            yield f"{'':<19}-> {typed(printable_name(found.action))}"
    left = sum(one.is_open for one in findings)
    yield f"{left} problem{'' if left == 1 else 's'} left" if left else "nothing is wrong"


def _body(found: Finding) -> dict[str, Any]:
    body = {
        **fields(found, "check", "level", "message", "action", "agent", "healed", "failed"),
        "code": found.condition.code if found.condition is not None else None,
        "agents": found.agents or None,
        "canBeHealed": found.heal is not None,
    }
    return {name: value for name, value in body.items() if value is not None}
