"""A notebook with the JAX observer around its cells."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tpumagic.backends import Observation
from tpumagic.backends.jax import JaxBackend
from tpumagic.plans import Target
from tpumagic.user_code import UserCode

_numbers = itertools.count(1)


@dataclass
class Notebook:
    """Cells that share variables and one observer; ``run`` gives what was seen in one cell."""

    namespace: dict = field(default_factory=lambda: {"__name__": "__main__"})
    count: int = 0

    def __post_init__(self) -> None:
        self.user_code = UserCode()
        self.backend = JaxBackend(self.user_code)

    def run(
        self, source: str, *, raises: type[BaseException] | None = None, target: Target | None = None
    ) -> Observation:
        """Execute with every hook in place. raises: the exception that the cell must end with. target: what its
        programs are going to be compiled for."""
        self.count += 1
        filename = f"/nonexistent/cell_{next(_numbers)}.py"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        self.user_code.add_cell(filename, self.count, source)
        self.backend.start(lambda: True, target)
        try:
            exec(compile(source, filename, "exec"), self.namespace)
        except BaseException as error:
            if raises is None or not isinstance(error, raises):
                raise
        else:
            assert raises is None, f"the cell did not raise {raises}"
        finally:
            self.backend.stop()
        return self.backend.observation(self.namespace, out=None, traceback=None)

    def close(self) -> None:
        """Take everything away."""
        self.backend.close()


@pytest.fixture
def fresh_notebook() -> Iterator[Notebook]:
    """A notebook whose first cell has not run."""
    made = Notebook()
    yield made
    made.close()


@pytest.fixture
def notebook(fresh_notebook: Notebook) -> Notebook:
    """A notebook with JAX imported and ``x``, a float32[4,4]."""
    fresh_notebook.run("import jax, jax.numpy as jnp, numpy as np\nfrom functools import partial\nx = jnp.ones((4, 4))")
    return fresh_notebook
