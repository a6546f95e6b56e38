"""A session survives whatever a cell does to Python, and gives everything back."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tpumagic.session import Cell, Session
from tpumagic.user_code import UserCode


class Silent(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Strange:
    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    __hash__ = object.__hash__


@pytest.fixture
def session():
    session = Session(UserCode(), dict)
    yield session
    session.close()


@pytest.mark.parametrize("error", [Silent(), SystemExit(Strange())])
def test_an_exception_that_cannot_be_printed_or_compared_has_a_report(session, error):
    session.start(Cell("x"))
    report = session.finish(error)
    assert not report.unavailable


def test_a_replaced_clock_costs_nothing(session, monkeypatch):
    session.start(Cell("x"))
    monkeypatch.setattr(time, "perf_counter", lambda: "now")
    assert session.finish().timing.wall_s >= 0


def test_a_putenv_of_the_users_stays(session, monkeypatch):
    monkeypatch.setattr(os, "putenv", os.putenv)
    session.start(Cell("x"))
    watched = os.putenv

    def theirs(key, value):
        watched(key, value)

    os.putenv = theirs
    session.finish()
    assert os.putenv is theirs


def test_imports_are_not_watched_by_a_list_of_finders_that_comes_back(session, monkeypatch):
    before = list(sys.meta_path)
    session.start(Cell("x"))
    old = sys.meta_path
    monkeypatch.setattr(sys, "meta_path", [])
    session.finish()
    monkeypatch.setattr(sys, "meta_path", old)
    assert list(sys.meta_path) == before


def test_names_that_are_no_text_do_not_disturb():
    session = Session(UserCode(), lambda: {5: 1, "x": 2})  # type: ignore[dict-item]
    session.start(Cell("x"))
    assert not session.finish().unavailable


def test_the_start_of_a_cell_grows_linearly_with_its_lines():
    def cost_s(lines: int) -> float:
        session = Session(UserCode(), dict)
        source = "\n".join(f"v{i} = 1" for i in range(lines))
        began_s = time.thread_time()
        session.start(Cell(source))
        ended_s = time.thread_time()
        session.close()
        return ended_s - began_s

    cost_s(10)
    # Eight times the lines: 8 if linear and up to twice that with garbage collection, about 50 if quadratic.
    assert cost_s(24_000) < 25 * cost_s(3_000)
