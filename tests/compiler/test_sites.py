"""Stacks of the compiler become lines of the user's code, wherever in an answer they stand."""

from dataclasses import replace

from tests.compiler.test_cache import answer
from tpumagic.compiler.sites import localized
from tpumagic.events import SourceSite
from tpumagic.plans import Communication, CompilerError, Donation, NotCounted, Product, SpecialCall


def site_of(file: str, line: int, function: str) -> SourceSite | None:
    return SourceSite(line, cell=5, function=function) if file.startswith("/home") else None


RAW = (SourceSite(3, file="/home/user/model.py", function="step"), SourceSite(7, file="/usr/lib/jax/core.py"))
OWN = (SourceSite(3, cell=5, function="step"),)


def test_frames_that_are_not_the_users_are_left_out():
    found = localized(answer(), site_of)
    assert found.plan.holders[0].stack == OWN
    assert found.cost.lines[0].stack == OWN


def test_every_kind_of_thing_is_localized():
    raw = answer()
    plan = replace(
        raw.plan,
        communications=(Communication("all-gather", "float32", (8,), 32, stack=RAW),),
        calls=(SpecialCall("host", "callback", stack=RAW),),
        products=(Product("float32", "default", True, stack=RAW),),
        padded=raw.plan.holders,
        donations=(Donation("params['w']", 0, 4),),
    )
    cost = replace(raw.cost, not_counted=(NotCounted("sort", stack=RAW),))
    error = CompilerError("unsupported", "no", stack=RAW)
    found = localized(replace(raw, plan=plan, cost=cost, error=error), site_of)
    for one in (*found.plan.communications, *found.plan.calls, *found.plan.products, *found.plan.padded):
        assert one.stack == OWN
    assert found.cost.not_counted[0].stack == found.error.stack == OWN
    assert found.plan.donations == plan.donations
    assert found.plan.timeline == plan.timeline


def test_an_answer_without_anything_stays_what_it_is():
    nothing = replace(answer(), plan=None, cost=None, status="unavailable", why="no")
    assert localized(nothing, site_of) == nothing
