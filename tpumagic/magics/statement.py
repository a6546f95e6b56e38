"""Runs and profiles a part of a cell: the statement behind ``%tpu_profile``, or a block under ``tpumagic.profile()``."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

from tpumagic.magics.hooks import Hooks, Options, Run

if TYPE_CHECKING:
    from tpumagic.report import Report

NAME = "<tpu_profile>"
"""File name of a statement's code: no file of the user's, so that a site is the line of the cell with the statement."""


def profile_statement(hooks: Hooks, text: str, options: Options, local_ns: dict[str, Any]) -> Any:
    """Run a statement as ``%time`` does and give its value; the report is shown in between.

    Where the cell is profiled itself, its report covers the statement. What the statement raises is raised.
    """
    __tracebackhide__ = True
    return _profile(hooks, text, NAME, options, local_ns)


def profile_body(hooks: Hooks, text: str, options: Options, local_ns: dict[str, Any]) -> Any:
    """The same for the body of a cell magic that a program calls by its name (a notebook exported as a script)."""
    __tracebackhide__ = True
    name = hooks.shell.compile.cache(text, hooks.shell.execution_count)
    return _profile(hooks, text, name, options, local_ns)


def begin(hooks: Hooks, options: Options) -> bool:
    """Start a profile in the middle of a cell; False if there is one already, or in another thread."""
    run = hooks.thread.run
    if run is not None:
        if run.auto:  # this cell shall have a report, and it will
            run.auto, run.options = False, options
        return False
    return hooks.start(Run(None, options))


def end(hooks: Hooks, error: BaseException | None) -> Report:
    """End it; the report of a failure waits until the cell's traceback has been shown."""
    report, options = hooks.finish(error)
    if error is not None and hooks.thread.cells:
        hooks.thread.waiting.append((report, options))
    else:
        hooks.deliver(report, options)
    return report


def _profile(hooks: Hooks, text: str, name: str, options: Options, local_ns: dict[str, Any]) -> Any:
    __tracebackhide__ = True
    code, last = _compile(hooks.shell, text, name)
    begun = begin(hooks, options)
    try:
        value = run_code(hooks.shell, code, local_ns)
        if last is not None:
            value = run_code(hooks.shell, last, local_ns)
    except BaseException as error:
        if begun:
            end(hooks, error)
        raise
    if begun:
        end(hooks, None)
    return value


def _compile(shell: Any, text: str, name: str) -> tuple[Any, Any]:
    """Code of all statements but a last expression, and code of that expression (None if there is none)."""
    tree = shell.transform_ast(shell.compile.ast_parse(shell.transform_cell(text), name))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = code_of(shell, ast.Expression(tree.body.pop().value), name, "eval")
    return code_of(shell, tree, name, "exec"), last


def code_of(shell: Any, tree: ast.AST, name: str, mode: str) -> Any:
    """Code of a tree as cells are compiled, which may await."""
    with shell.compile.extra_flags(ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0):
        return shell.compile(tree, name, mode)


def run_code(shell: Any, code: Any, local_ns: dict[str, Any]) -> Any:
    """Run it in the user's namespace, as cells are run."""
    __tracebackhide__ = True
    value = eval(code, shell.user_ns, local_ns)  # noqa: S307 (the user's own statement)
    return shell.loop_runner(value) if code.co_flags & inspect.CO_COROUTINE else value
