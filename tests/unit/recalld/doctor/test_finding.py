"""Findings that several agents have in common."""

from __future__ import annotations

from functools import partial

from recalld.doctor.finding import Finding, Level, in_common

REFUSED = partial(Finding, "provider", Level.PROBLEM, "the key is refused", "correct it")


def test_what_agents_have_in_common_is_told_once_and_names_them() -> None:
    other = Finding("provider", Level.PROBLEM, "no answer", "wait", agent="bob")
    fine = Finding.fine("provider", "cleo: keywords only")
    first, second, third = in_common([REFUSED(agent="ada"), other, fine, REFUSED(agent="cleo")])
    assert (first.message, first.agent, first.agents) == ("ada, cleo: the key is refused", None, ("ada", "cleo"))
    assert (second.message, second.agent, second.agents) == ("bob: no answer", "bob", ())
    assert third == fine
    assert [first.is_about(name) for name in ("ada", "bob")] == [True, False]
    assert [first.may_concern(name) for name in ("ada", "bob")] == [True, False]
    assert [third.may_concern("bob"), third.is_about("bob")] == [True, False]


def test_a_thousand_agents_are_counted_and_all_of_them_known() -> None:
    [found] = in_common(REFUSED(agent=f"a{number}") for number in range(1_000))
    assert found.message == "a0, a1, a2, a3, a4 and 995 more: the key is refused"
    assert len(found.agents) == 1_000
