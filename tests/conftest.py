"""Cells run for real: in a session, or only to fail."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator

import pytest

from tpumagic.events import Backend, CellRecord
from tpumagic.plans import Target
from tpumagic.report import Report
from tpumagic.session import Cell, Session
from tpumagic.user_code import UserCode

_numbers = itertools.count(1)


class Notebook:
    """Cells of one session, one after another."""

    def __init__(self) -> None:
        self.namespace: dict = {"__name__": "__main__"}
        self.user_code = UserCode()
        self.session = Session(self.user_code, lambda: self.namespace)
        self.count = 0

    def run(self, source: str, *, wait: bool = True, target: Target | None = None, cost: bool = False) -> Report:
        self.count += 1
        filename = f"/nonexistent/session_cell_{next(_numbers)}.py"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self.user_code.add_cell(filename, self.count, source)
        self.session.start(Cell(source, self.count, target=target, cost=cost))
        error = None
        try:
            exec(compile(source, filename, "exec"), self.namespace)
        except BaseException as raised:
            error = raised
        return self.session.finish(error, wait=wait)


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    """A notebook in which nothing has been imported."""
    made = Notebook()
    yield made
    made.session.close()


@pytest.fixture
def other_notebook() -> Iterator[Notebook]:
    """A second one in the same process."""
    made = Notebook()
    yield made
    made.session.close()


@pytest.fixture
def jax_notebook(notebook: Notebook) -> Notebook:
    """A notebook with ``jax``, ``jnp`` and an array ``x`` of 4 by 4."""
    pytest.importorskip("jax", reason="these are sessions with JAX in them")
    notebook.run("import jax, jax.numpy as jnp\nx = jnp.ones((4, 4))")
    return notebook


@pytest.fixture
def failed_cell() -> Callable[..., CellRecord]:
    """Runs a cell that must raise, with jax, jnp, np, partial and what is passed as ``names``, and gives its record."""

    def run(source: str, **names: object) -> CellRecord:
        from functools import partial

        import jax
        import jax.numpy as jnp
        import numpy as np

        from tpumagic.backends.jax.failures import failure

        filename = f"/nonexistent/failing_{next(_numbers)}.py"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        user_code = UserCode()
        user_code.add_cell(filename, 1, source)
        namespace = {"__name__": "__main__", "jax": jax, "jnp": jnp, "np": np, "partial": partial, **names}
        try:
            exec(compile(source, filename, "exec"), namespace)
        except Exception as error:
            error.__traceback__ = error.__traceback__.tb_next  # this file is no part of the cell
            stack = user_code.traceback_stack(error.__traceback__)
            told = failure(error, stack, namespace, user_code, lambda array: None)
            backend = Backend("jax", jax.__version__, "cpu", jax.device_count())
            return CellRecord(source=source, cell=1, failure=told, backends=(backend,))
        raise AssertionError("the cell did not fail")

    return run
