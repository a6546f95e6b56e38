"""Cells that fail, run for real."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable

import pytest

from tpumagic.events import Backend, CellRecord
from tpumagic.user_code import UserCode

_numbers = itertools.count(1)


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
