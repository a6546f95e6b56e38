"""``%tpu_dryrun CALL``: what the function and the arguments of one call are, without the call itself."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tpumagic.magics.statement import code_of, run_code

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "<tpu_dryrun>"
"""File name of the code of a call in a line: no file of the user's, as for ``%tpu_profile``."""


class NotACallError(ValueError):
    """The text is no single call in Python; the message says why, for a sentence that begins with the magic."""


def evaluate_call(
    shell: Any, text: str, name: str, local_ns: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Function, positional and keyword arguments of a call, each evaluated as Python would before it called.

    name: file name of the code. Raises NotACallError before anything is evaluated, and whatever the expressions raise.
    """
    __tracebackhide__ = True
    try:
        tree = ast.parse(text, name)
    except (SyntaxError, ValueError) as error:
        raise NotACallError(f"cannot read the call: {getattr(error, 'msg', None) or error}") from None
    match tree.body:
        case [ast.Expr(value=ast.Call() as call)]:
            code = code_of(shell, shell.transform_ast(ast.Expression(_collecting(call))), name, "eval")
        case _:
            raise NotACallError("needs one call and nothing else")
    return run_code(shell, code, local_ns)


def _collecting(call: ast.Call) -> ast.Call:
    """A call with the same argument expressions, of a function that only hands over what it gets: so that order, ``*``
    and ``**`` mean what they mean in the user's call."""
    collect = ast.parse("lambda function, /, *args, **kwargs: (function, args, kwargs)", mode="eval").body
    for node in ast.walk(collect):
        ast.copy_location(node, call)
    return ast.copy_location(ast.Call(collect, [call.func, *call.args], call.keywords), call)
