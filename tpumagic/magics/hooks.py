"""Profiles cells while IPython runs them: what happens before and after each cell.

A cell starts to be observed at the moment when IPython names its code (``code_names``), which is after every other
hook and right before it is compiled; it ends in ``post_run_cell``, after its traceback and figures were shown. Cells
may run inside cells (``%%capture``) and in several threads (subshells), so what runs is kept per thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from tpumagic.magics import code_names, targets
from tpumagic.magics.display import Waiting, say, show, update_views
from tpumagic.magics.tracebacks import UsersTraceback, without_our_frames
from tpumagic.magics.transform import PrefilterSingleLine, StripMagic, find_request, only_own_magics

if TYPE_CHECKING:
    from tpumagic.magics.auto import CauseHistory
    from tpumagic.plans import Target
    from tpumagic.report import Report
    from tpumagic.session import Session
    from tpumagic.user_code import UserCode


@dataclass(frozen=True)
class Options:
    """What stands behind ``%%tpu_profile``. target: None if it names none."""

    name: str | None = None
    quiet: bool = False
    widget: bool = False
    target: Target | None = None
    cost: bool = False


@dataclass
class Run:
    """A profile under way. info: IPython's record of the cell whose end is its end, None for a statement or a block;
    below_magics: our magic stands below others, one of which may run the body as a cell of its own."""

    info: Any
    options: Options
    auto: bool = False
    below_magics: bool = False
    started: bool = False


@dataclass
class Thread:
    """What one thread runs: cells inside cells (IPython's records of them, outermost first), the profile under way,
    and reports to be shown when the cell is over. named: the outermost cell has got its name; count: its number, None
    until then and where cells are not counted."""

    cells: list[Any] = field(default_factory=list[Any])
    run: Run | None = None
    waiting: list[tuple[Report, Options]] = field(default_factory=list["tuple[Report, Options]"])
    named: bool = False
    count: int | None = None


class TracebackTimer:
    """Calls ``mark`` whenever the shell begins to show a traceback: drawing one can take longer than the cell did. Takes
    our own frames off it, which stand between the user's code and a framework."""

    def __init__(self, shell: Any, mark: Callable[[], None]) -> None:
        self._shell = shell
        if shell is None or "showtraceback" in vars(shell):  # somebody's own way of showing them stays theirs
            self._shell = None
            return
        original = shell.showtraceback

        @wraps(original)
        def showtraceback(*args: Any, **kwargs: Any) -> Any:
            mark()
            error = sys.exc_info()[1]
            if error is not None:
                error.__traceback__ = without_our_frames(error.__traceback__)
            return original(*args, **kwargs)

        self._mine = showtraceback
        shell.showtraceback = showtraceback

    def remove(self) -> None:
        """Take the timer away."""
        if self._shell is not None and vars(self._shell).get("showtraceback") is self._mine:
            del self._shell.showtraceback
        self._shell = None


class Hooks:
    """The hooks in one shell. parse: turns the text behind the magic into Options, raises UsageError."""

    def __init__(self, shell: Any, parse: Callable[[str], Options]) -> None:
        self.shell = shell
        self.auto = False
        self._parse = parse
        self._local = threading.local()
        self._starting = threading.Lock()
        self._traceback = TracebackTimer(None, lambda: None)
        self._names = code_names.CodeNames(shell, self._code_named)
        self._strip = StripMagic(self._valid)
        self._prefilter = PrefilterSingleLine(self._prefiltered)

    # What follows is made when it is first needed, so that loading the extension stays quick.

    @cached_property
    def user_code(self) -> UserCode:
        """Which code is the user's; made with the first cell after loading, from the cells before."""
        from tpumagic.user_code import UserCode

        user_code = UserCode()
        code_names.add_earlier_cells(self.shell, user_code)
        return user_code

    @cached_property
    def _auto_history(self) -> CauseHistory:
        from tpumagic.magics.auto import CauseHistory

        return CauseHistory()

    @cached_property
    def session(self) -> Session:
        """The profiles of this shell."""
        from tpumagic.session import Session

        session = Session(self.user_code, lambda: self.shell.user_ns)
        session.on_update = update_views
        return session

    @property
    def last_report(self) -> Report | None:
        """The newest report, None before the first."""
        return self.session.reports[-1] if "session" in self.__dict__ and self.session.reports else None

    @property
    def thread(self) -> Thread:
        """The state of the calling thread."""
        try:
            return self._local.state
        except AttributeError:
            self._local.state = Thread()
            return self._local.state

    def install(self) -> None:
        """Register everything; undone by ``remove``."""
        self.shell.input_transformers_cleanup.append(self._strip)
        self.shell.input_transformers_post.append(self._prefilter)
        self.shell.events.register("pre_run_cell", self.pre_run_cell)
        self.shell.events.register("post_run_cell", self.post_run_cell)
        self._names.install()

    def remove(self) -> None:
        """Leave nothing behind in the shell; a profile under way ends without a report."""
        for steps, step in (
            (self.shell.input_transformers_cleanup, self._strip),
            (self.shell.input_transformers_post, self._prefilter),
        ):
            if step in steps:
                steps.remove(step)
        for event, callback in (("pre_run_cell", self.pre_run_cell), ("post_run_cell", self.post_run_cell)):
            try:
                self.shell.events.unregister(event, callback)
            except ValueError:  # somebody removed it before us
                pass
        self._names.remove()
        self._traceback.remove()
        if "session" in self.__dict__:
            self.session.close()

    def pre_run_cell(self, info: Any) -> None:
        """Called by IPython before each cell that is not silent, also before cells inside cells."""
        try:
            self._cell_begins(info)
        except BaseException as fault:  # the user's cell runs, whatever is wrong with us
            _own_fault(fault)

    def post_run_cell(self, result: Any) -> None:
        """Called by IPython after each cell, also where ``pre_run_cell`` was not (empty cells)."""
        # A cancelled asynchronous cell has no result; its exception is still under way here.
        error = sys.exc_info()[1] if result is None else result.error_before_exec or result.error_in_exec
        try:
            self._cell_ends(result, error)
        except BaseException as fault:  # the reply to the frontend must be that of the user's cell
            _own_fault(fault)

    def start(self, run: Run) -> bool:
        """Start the profile of this thread; False if it cannot be, because another thread's is under way."""
        from tpumagic.session import Cell

        thread = self.thread
        with self._starting:
            if self.session.running:
                thread.run = None
                if not run.auto:
                    say("tpumagic: another cell is being profiled, so this one runs without a report.")
                return False
            thread.run, run.started = run, True
            source = thread.cells[0].raw_cell if thread.cells else ""
            self._traceback = TracebackTimer(self.shell, self.session.mark_end)
            options = run.options
            # Without a target a real TPU's programs are read as they are, and nothing is compiled again.
            target = options.target or targets.default()
            cell = Cell(source, thread.count, options.name, auto=run.auto, target=target, cost=options.cost)
            self.session.start(cell)
        return True

    def finish(self, error: BaseException | None) -> tuple[Report, Options]:
        """End the profile of this thread."""
        thread = self.thread
        run, thread.run = thread.run, None
        assert run is not None
        self._traceback.remove()
        try:
            with Waiting() if run.options.cost else nullcontext():
                report = self.session.finish(error, wait=not run.auto)
        except BaseException:
            self.session.close()  # whatever went wrong, nothing goes on being observed
            raise
        quiet = run.options.quiet or (run.auto and not self._auto_history.speaks(report))
        return report, replace(run.options, quiet=quiet)

    def dry_run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        target: Target,
        cost: bool,
        remedies: bool,
    ) -> Report:
        """The report of a call that is compiled for a target and not run; see ``Session.dry_run``."""
        from tpumagic.session import Cell

        __tracebackhide__ = True
        thread = self.thread
        cell = Cell(thread.cells[0].raw_cell if thread.cells else "", thread.count)
        with UsersTraceback(), Waiting() if cost or remedies else nullcontext():
            return self.session.dry_run(function, args, kwargs, target=target, cost=cost, remedies=remedies, cell=cell)

    def deliver(self, report: Report, options: Options) -> None:
        """Show a report unless it is to be kept quiet."""
        if not options.quiet:
            show(self.shell, report, widget=options.widget)

    def _valid(self, options: str) -> bool:
        try:
            self._parse(options)
        except UsageError:
            return False
        return True

    def _prefiltered(self, line: str) -> str:
        with self.shell.builtin_trap:
            return self.shell.prefilter_manager.prefilter_lines(line)

    def _cell_begins(self, info: Any) -> None:
        thread = self.thread
        thread.cells.append(info)
        if len(thread.cells) == 1:
            thread.named, thread.count = False, None
        run = thread.run
        if run is not None:
            if run.below_magics and find_request(info.raw_cell) is not None:
                run.info = info  # %%capture runs our magic and its body as a cell: the report belongs in there
            return
        request = find_request(info.raw_cell)
        if request is not None and self._valid(request.options):
            run = Run(info, self._parse(request.options), below_magics=bool(request.above))
        elif request is None and self.auto and not only_own_magics(info.raw_cell):
            run = Run(info, Options(), auto=True)
        thread.run = run
        if run is not None and not getattr(info, "shell_futures", True):
            self.start(run)  # such cells are compiled by a compiler of their own, which we do not hear

    def _code_named(self, name: str, count: int, text: str) -> None:
        try:
            thread = self.thread
            whole = thread.cells[0].raw_cell if thread.cells else text
            begins = bool(thread.cells) and not thread.named
            if begins:
                # Cells that are not stored have no number of their own, only that of the next one.
                thread.named, thread.count = True, count if thread.cells[0].store_history else None
            code_names.add_cell(self.user_code, name, thread.count if thread.cells else None, text, whole)
            if begins:
                code_names.add_bodies(self.user_code, thread.count, whole)
            if thread.run is not None and not thread.run.started:
                self.start(thread.run)
        except BaseException as fault:  # as in pre_run_cell
            _own_fault(fault)

    def _cell_ends(self, result: Any, error: BaseException | None) -> None:
        thread = self.thread
        position = _position(thread.cells, result)
        if position is None:
            return
        ended = thread.cells[position:]
        run = thread.run
        ends = run is not None and any(run.info is info for info in ended)
        try:
            # Code that IPython could not even transform was never named, so its profile has not begun.
            if run is not None and ends and (run.started or self.start(run)):
                self.deliver(*self.finish(error))
        finally:
            del thread.cells[position:]
            if ends:
                thread.run = None
        if not thread.cells:
            waiting, thread.waiting = thread.waiting, []
            for report, options in waiting:
                self.deliver(report, options)


def _position(cells: list[Any], result: Any) -> int | None:
    """Which of the cells under way has ended; None if it is none of them."""
    if not cells:
        return None
    info = getattr(result, "info", None)
    for position, one in enumerate(cells):
        if one is info:
            return position
    # A cell that was cancelled comes without a record, or with a new one of the same text.
    if info is None or info.raw_cell == cells[-1].raw_cell:
        return len(cells) - 1
    return None


def _own_fault(fault: BaseException) -> None:
    try:
        text = str(fault)[:200]
    except BaseException:  # the user's own exception, which fails to say what it is
        text = ""
    text = ": ".join(filter(None, (type(fault).__name__, text)))
    say(f"tpumagic could not profile this cell ({text}); the cell itself is not affected.")
