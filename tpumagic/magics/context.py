"""``tpumagic.profile()``, ``tpumagic.dry_run()`` and ``tpumagic.last_report()``: the same as the magics, for code in files
and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tpumagic.magics.hooks import Hooks
    from tpumagic.plans import Target
    from tpumagic.report import Report
    from tpumagic.session import Session

_script_session: Session | None = None
_script_names: dict[str, Any] = {}
"""Variables of the module whose block is profiled, or was last."""


class profile:  # noqa: N801 (used like a function: `with tpumagic.profile():`)
    """Profiles a block: ``with tpumagic.profile() as profiled: …``, then ``profiled.report``.

    name: a name for the profile. quiet: show nothing. report is None until the block ends, and stays None where the
    block is part of a profile already (in a ``%%tpu_profile`` cell): that one's report covers it.
    """

    def __init__(self, name: str | None = None, *, quiet: bool = False) -> None:
        self.report: Report | None = None
        self._name = name
        self._quiet = quiet
        self._hooks: Hooks | None = None
        self._session: Session | None = None

    def __enter__(self) -> Self:
        self._hooks = _loaded_hooks()
        if self._hooks is not None:
            from tpumagic.magics import statement
            from tpumagic.magics.hooks import Options

            if not statement.begin(self._hooks, Options(self._name, self._quiet)):
                self._hooks = None
        else:
            self._start_in_script(sys._getframe(1))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._hooks is not None:
            from tpumagic.magics import statement

            self.report = statement.end(self._hooks, error)
        elif self._session is not None:
            self.report = self._session.finish(error)
            if not self._quiet:
                from tpumagic.report.text import render

                print(render(self.report), file=sys.stderr)

    def _start_in_script(self, frame: FrameType) -> None:
        from tpumagic.magics import targets
        from tpumagic.session import Cell

        session = _session_of_script(frame)
        if session.running:
            return
        path = frame.f_code.co_filename
        session.start(Cell(source=_text(path), name=self._name, file=path, target=targets.default()))
        self._session = session


def dry_run(
    function: Callable[..., Any],
    /,
    *args: Any,
    target: str | Target | None = None,
    cost: bool = False,
    remedies: bool = False,
    **kwargs: Any,
) -> Report:
    """Compile ``function(*args, **kwargs)`` for a TPU without running it; the report says whether it fits.

    function: jitted or not; it is traced at most once. args: arrays, ``jax.ShapeDtypeStruct``s or a mixture. target: as
    ``tpumagic targets`` spells it (``"v5e-8"``); without one it is the notebook's default, else this machine's own TPU.
    cost: wait for the estimate of the time. remedies: where it does not fit, compile it with each remedy as well.

    ``target``, ``cost`` and ``remedies`` are this function's: for a function with arguments of these names give
    ``lambda x, goal: function(x, target=goal)``. Raises ValueError without a target and for an unknown one, and whatever
    tracing the function raises. In a notebook the report shows itself as the last value of a cell.
    """
    __tracebackhide__ = True
    from tpumagic.magics import targets
    from tpumagic.plans import Target

    if not isinstance(target, str | Target | None):
        raise TypeError(f"target is a name like 'v5e-1', not {type(target).__name__}.")
    chosen = targets.chosen(targets.parse(target) if isinstance(target, str) else target)
    if chosen is None:
        raise ValueError("There is no TPU here, so name a target, as in tpumagic.dry_run(step, x, target='v5e-1').")
    hooks = _loaded_hooks()
    if hooks is not None:
        return hooks.dry_run(function, args, kwargs, target=chosen, cost=cost, remedies=remedies)
    from tpumagic.magics.tracebacks import UsersTraceback
    from tpumagic.session import Cell

    frame = sys._getframe(1)
    path = frame.f_code.co_filename
    session = _session_of_script(frame)
    cell = Cell(source=_text(path), file=path)
    with UsersTraceback():
        return session.dry_run(function, args, kwargs, target=chosen, cost=cost, remedies=remedies, cell=cell)


def last_report() -> Report | None:
    """The newest report of this process, None before the first."""
    hooks = _loaded_hooks()
    if hooks is not None:
        return hooks.last_report
    return _script_session.reports[-1] if _script_session is not None and _script_session.reports else None


def _loaded_hooks() -> Hooks | None:
    """The hooks of the shell that runs, None outside IPython and where the extension is not loaded."""
    interactive = sys.modules.get("IPython.core.getipython")
    shell: Any = interactive.get_ipython() if interactive is not None else None
    if shell is None:
        return None
    from tpumagic.magics import loaded

    return loaded(shell)


def _session_of_script(frame: FrameType) -> Session:
    """The session of code outside IPython; what runs in the frame names its variables, unless a block does already."""
    global _script_session, _script_names
    if _script_session is None:
        from tpumagic.session import Session
        from tpumagic.user_code import UserCode

        _script_session = Session(UserCode(), lambda: _script_names)
    if not _script_session.running:
        _script_names = frame.f_globals
    return _script_session


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
