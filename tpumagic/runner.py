"""Run a file cell by cell under a Session: a script as ``python FILE`` would, a notebook in an IPython shell.

Both stop at the first cell that fails and was not meant to, print the user's own traceback to standard error and hand
back what was seen until then.
"""

from __future__ import annotations
import __future__

import builtins
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from tpumagic.magics.tracebacks import without_our_frames
from tpumagic.user_code import UserCode

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from tpumagic.cells import FileCell
    from tpumagic.magics.hooks import Options
    from tpumagic.plans import Target
    from tpumagic.report import Report
    from tpumagic.session import Cell

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it (128 + SIGINT)."""

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag

Show = Callable[[str, "Report"], None]
"""Gets which cell it was, in words, and its report."""


@dataclass(frozen=True)
class Wish:
    """What a run is asked for. target: also compile each cell's programs for this TPU; cost: wait for the compiler's
    estimate of their time."""

    target: Target | None = None
    cost: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run left. status: the exit status for the command; 0 all cells ran, 1 a cell failed, 130 interrupted, or
    what the file itself gave to ``sys.exit``."""

    reports: tuple[Report, ...]
    status: int


def run_script(path: Path, cells: Sequence[FileCell], arguments: Sequence[str], show: Show, wish: Wish) -> Outcome:
    """Run the cells of a script in one ``__main__`` module, as ``python path arguments`` would; show gets each report
    as soon as it is there."""
    from tpumagic.session import Session

    filename = os.path.abspath(path)
    module = _main_module(filename)
    user_code = UserCode()
    user_code.add_file(filename)
    session = Session(user_code, lambda: module.__dict__)
    sys.argv = [str(path), *arguments]
    _aim(wish)
    _set_script_folder(os.path.dirname(os.path.realpath(path)))
    owner = os.getpid()
    reports: list[Report] = []
    error: BaseException | None = None
    flags = 0
    try:
        for cell in cells:
            session.start(_observed(cell, filename, wish))
            error, flags = _execute(cell, filename, module, flags)
            if os.getpid() == owner:  # a fork of the script goes on to its own end and reports nothing
                reports.append(session.finish(error, wait=not isinstance(error, KeyboardInterrupt)))
                show(f"{path.name} line {cell.first_line}", reports[-1])
            if error is not None:
                break
    finally:
        session.close()
    if os.getpid() != owner:
        sys.exit(exit_status(error))
    return Outcome(tuple(reports), exit_status(error))


def run_notebook(path: Path, cells: Sequence[FileCell], arguments: Sequence[str], show: Show, wish: Wish) -> Outcome:
    """Run the code cells of a notebook in an IPython shell of this process, in the notebook's folder as kernels do.

    A cell that asks for a profile itself is profiled once, under the name that it gives.
    """
    from tpumagic import magics
    from tpumagic.magics.hooks import Run

    sys.argv = [str(path), *arguments]
    _aim(wish)
    folder = os.path.dirname(os.path.realpath(path))
    os.chdir(folder)
    _set_script_folder(folder)
    shell = make_shell()
    reports: list[Report] = []
    error: BaseException | None = None
    for cell in cells:
        magics.load(shell)  # the notebook may have unloaded it
        hooks = magics.loaded(shell)
        assert hooks is not None
        hooks.session.on_update = None  # what comes later would come too late
        run = hooks.thread.run = Run(None, _options(cell.source, wish))
        result = shell.run_cell(cell.source, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        # A cell that loads the extension anew has taken its own profile away.
        if hooks is magics.loaded(shell) and hooks.thread.run is run and (run.started or hooks.start(run)):
            reports.append(hooks.finish(error)[0])
            show(f"{path.name} In [{hooks.thread.count or '?'}]", reports[-1])
        if cell.may_fail and isinstance(error, Exception):
            error = None
        if error is not None:
            break
    magics.unload(shell)
    return Outcome(tuple(reports), exit_status(error))


def make_shell() -> InteractiveShell:
    """An IPython shell without a terminal: tracebacks go to standard error, and no history is written."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class NotebookShell(InteractiveShell):
        def _showtraceback(self, etype: object, evalue: object, stb: Any) -> None:  # lines, whatever IPython says
            _flush()
            print("\n".join(stb), file=sys.stderr)

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "NoColor"
    return NotebookShell.instance(config=config)


def _options(source: str, wish: Wish) -> Options:
    """What a cell's own ``%%tpu_profile`` line asks for, and the run."""
    from IPython.core.error import UsageError

    from tpumagic.magics.commands import parse_options
    from tpumagic.magics.hooks import Options
    from tpumagic.magics.transform import find_request

    request = find_request(source)
    try:
        own = Options() if request is None else parse_options(request.options)
    except UsageError:  # the magic itself tells the user, and the cell is not run
        own = Options()
    return replace(own, cost=own.cost or wish.cost)


def _aim(wish: Wish) -> None:
    """Before JAX starts: the target is the default of the file's own dry runs too, and on a machine without a TPU there
    are as many CPU devices as it has."""
    from tpumagic.magics import targets

    if wish.target is not None:
        targets.set_default(wish.target)
        targets.prepare_cpu_devices(wish.target)


def exit_status(error: BaseException | None) -> int:
    """The exit status that Python would end with after this exception, whose message it prints as Python would."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _execute(cell: FileCell, filename: str, module: ModuleType, flags: int) -> tuple[BaseException | None, int]:
    """Run one cell; gives the exception that ended it and the ``__future__`` flags in force after it."""
    try:
        code = _compile(cell, filename, flags)
        exec(code, module.__dict__)  # noqa: S102  the user's own file
    except SystemExit as error:
        return error, flags
    except BaseException as error:
        error.__traceback__ = without_our_frames(error.__traceback__)
        _flush()
        sys.excepthook(type(error), error, error.__traceback__)
        return error, flags
    return None, flags | (code.co_flags & _FUTURE_FLAGS)


def _observed(cell: FileCell, filename: str, wish: Wish) -> Cell:
    from tpumagic.session import Cell

    return Cell(
        cell.source,
        name=cell.title,
        file=filename,
        first_line=cell.first_line,
        target=wish.target,
        cost=wish.cost,
    )


def _compile(cell: FileCell, filename: str, flags: int) -> CodeType:
    """Code whose lines are those of the file."""
    return compile("\n" * (cell.first_line - 1) + cell.source, filename, "exec", flags=flags, dont_inherit=True)


def _main_module(filename: str) -> ModuleType:
    """A fresh ``__main__`` for a script, in place of the command's: pickle, dataclasses, inspect and the processes
    that multiprocessing starts find the script there."""
    module = ModuleType("__main__")
    module.__file__ = filename
    module.__loader__ = SourceFileLoader("__main__", filename)
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__cached__"] = None
    sys.modules["__main__"] = module
    return module


def _set_script_folder(folder: str) -> None:
    """Put the script's folder where Python puts it, in place of the command's own entry."""
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, folder)


def _flush() -> None:
    """Let what the cell printed stand before its traceback."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass
