"""The magics a user types: ``%tpu_profile``, ``%tpu_dryrun``, ``%tpu_auto``, ``%tpu_last`` and ``%tpu_env``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, needs_local_scope, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from tpumagic.frameworks import FRAMEWORKS, ON_JAX
from tpumagic.magics import targets
from tpumagic.magics.display import publish, show
from tpumagic.magics.hooks import Hooks, Options
from tpumagic.magics.options import DRY_RUN, ENVIRONMENT, PROFILE, Option
from tpumagic.magics.statement import profile_body, profile_statement
from tpumagic.magics.transform import split_statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpumagic.plans import Target

try:
    from IPython.core.magic import output_can_be_silenced
except ImportError:  # IPython before 8.4, where no magic's value can be silenced with `;`

    def output_can_be_silenced(magic_func: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a magic as it is."""
        return magic_func


def _takes(options: tuple[Option, ...]) -> Callable[[Any], Any]:
    """Declares options as IPython's own decorator does, which wants the first one last."""

    def declare(magic: Any) -> Any:
        for option in reversed(options):
            magic = argument(option.flag, **option.arguments)(magic)
        return magic

    return declare


@magics_class
class TpuMagics(Magics):
    """Shows, under a cell, what that cell does on a TPU."""

    shell: Any
    hooks: Hooks

    # The order matters: what IPython's decorators tell about a function, they write on the function they get.
    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    @output_can_be_silenced
    @magic_arguments()
    @_takes(PROFILE)
    def tpu_profile(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> Any:
        """Profile a cell or a statement.

        ``%%tpu_profile`` on the first line of a cell: the cell runs exactly as without it, and a report follows.
        ``%tpu_profile STATEMENT``: the same for one statement, whose value is returned.
        """
        __tracebackhide__ = True
        names: dict[str, Any] = self.shell.user_ns if local_ns is None else local_ns
        if cell is not None:
            # IPython gets here only with wrong options, or when a program calls the magic by its name.
            return profile_body(self.hooks, cell, parse_options(line), names)
        options, statement = split_statement(line)
        parsed = parse_options(options)
        if not statement:
            raise UsageError(
                "%tpu_profile needs a statement, as in `%tpu_profile step(x)`; "
                "to profile a cell, put %%tpu_profile on its first line."
            )
        return profile_statement(self.hooks, statement, parsed, names)

    @no_var_expand
    @needs_local_scope
    @line_cell_magic
    @magic_arguments()
    @_takes(DRY_RUN)
    def tpu_dryrun(self, line: str, cell: str | None = None, local_ns: dict[str, Any] | None = None) -> None:
        """Compile one call for a TPU without running it, and say whether it fits: ``%tpu_dryrun step(params, batch)``.

        The function and the arguments are evaluated, the call is not: the function is traced at most once, and nothing
        runs on a device. Arguments may be arrays, ``jax.ShapeDtypeStruct``s or a mixture. Under ``%%tpu_dryrun`` the
        call may take several lines. The target is ``--target``, else the notebook's default (``%tpu_env --target``),
        else this machine's own TPU.
        """
        __tracebackhide__ = True
        from tpumagic.magics import dry_run

        options, call = (line, cell) if cell is not None else split_statement(line)
        arguments = _parse(self.tpu_dryrun, options)
        target = _target(_unquoted(arguments.target), "%tpu_dryrun", " step(params, batch)")
        name = dry_run.NAME
        if cell is not None:  # its lines are told as the cell's
            name = self.shell.compile.cache(cell, self.shell.execution_count)
        names: dict[str, Any] = self.shell.user_ns if local_ns is None else local_ns
        try:
            function, positional, keyword = dry_run.evaluate_call(self.shell, call, name, names)
        except dry_run.NotACallError as error:
            example = "it is used like `%tpu_dryrun --target v5e-1 step(params, batch)`"
            raise UsageError(f"%tpu_dryrun {error}; {example}.") from None
        if "jax" not in sys.modules:
            raise UsageError("%tpu_dryrun compiles JAX programs: import jax first.")
        report = self.hooks.dry_run(
            function, positional, keyword, target=target, cost=arguments.cost, remedies=arguments.remedies
        )
        show(self.shell, report)

    @line_magic
    def tpu_auto(self, line: str) -> None:
        """Profile every cell, and speak only under those that have something to say: ``%tpu_auto on|off``.

        It speaks of errors, wrong values, what costs a twentieth of the cell and half a second, what takes a twentieth
        of the device's memory, and of a cause that comes for the third time. The rest waits in ``%tpu_last``.
        """
        word = line.strip()
        if word not in ("on", "off"):
            raise UsageError("%tpu_auto is followed by `on` or `off`.")
        self.hooks.auto = word == "on"

    @line_magic
    def tpu_last(self, line: str) -> None:
        """Show the last report again: ``%tpu_last``."""
        if line.strip():
            raise UsageError("%tpu_last takes no arguments.")
        report = self.hooks.last_report
        if report is None:
            print("Nothing has been profiled yet: put %%tpu_profile on the first line of a cell.")
        else:
            show(self.shell, report)

    @line_magic
    @magic_arguments()
    @argument(
        "backend",
        nargs="?",
        metavar="FRAMEWORK",
        help=f"set this framework up and prove that it computes: {', '.join(FRAMEWORKS[:-1])} or {FRAMEWORKS[-1]}",
    )
    @_takes(ENVIRONMENT)
    def tpu_env(self, line: str) -> None:
        """Show what this machine has for TPUs and what is wrong with it; with a framework's name, set that up.

        ``%tpu_env --target v5e-8`` makes that TPU the target of every profile and dry run of this notebook,
        ``%tpu_env --target none`` ends it.
        """
        from tpumagic.magics import environment

        arguments = _parse(self.tpu_env, line)
        framework, cache, target = arguments.backend, _unquoted(arguments.cache), _unquoted(arguments.target)
        if arguments.undo:
            if framework or cache or target or arguments.preview:
                raise UsageError("--undo stands alone, as in `%tpu_env --undo`: it puts back all that was changed.")
            return _show_card(self.shell, environment.undo())
        if framework is None:
            for option in ("cache", "preview"):
                if getattr(arguments, option):
                    value = " DIR" if option == "cache" else ""
                    raise UsageError(f"--{option} goes with a framework: %tpu_env jax --{option}{value}")
        elif framework not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise UsageError(f"%tpu_env does not know the framework {framework!r}; it can set up: {known}")
        else:
            for option, value in (("cache", cache), ("target", target)):
                if value is not None and framework not in ON_JAX:
                    raise UsageError(f"--{option} goes with {' and '.join(ON_JAX)} only.")
        chosen = _named(target) if target not in (None, "none") else None
        if framework is None:
            return _show_card(self.shell, environment.card() if target is None else environment.set_target(chosen))
        if target == "none":
            raise UsageError("--target none stands alone, as in `%tpu_env --target none`.")
        if arguments.preview:
            return _show_card(self.shell, environment.preview(framework, chosen))
        return _show_card(self.shell, environment.set_up(framework, cache, self.shell.user_ns, chosen))


def parse_options(text: str) -> Options:
    """The options of ``%%tpu_profile``. Raises UsageError."""
    arguments = _parse(TpuMagics.tpu_profile, text)
    name, target = _unquoted(arguments.name), _unquoted(arguments.target)
    named = _named(target) if target is not None else None
    if arguments.cost:  # before the cell runs for hours
        _target(target, "%%tpu_profile", " --cost")
    return Options(name, arguments.quiet, arguments.widget, named, arguments.cost)


def _named(name: str) -> Target:
    """The target of a name. Raises UsageError, which says what is known."""
    try:
        return targets.parse(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _target(name: str | None, magic: str, example: str) -> Target:
    """The target of a name or, without one, the one that holds here. Raises UsageError where there is none."""
    named = _named(name) if name is not None else None
    found = targets.chosen(named)
    if found is None:
        raise UsageError(
            f"There is no TPU here, so name a target, as in `{magic} --target v5e-1{example}`, or one for the whole "
            "notebook, as in `%tpu_env --target v5e-1`."
        )
    return found


def _show_card(shell: Any, bundle: dict[str, Any]) -> None:
    # JupyterLab would draw JSON rather than HTML.
    publish(shell, {mime: value for mime, value in bundle.items() if mime != "application/json"})


def _parse(magic: Any, text: str) -> Any:
    try:
        return parse_argstring(magic, text)
    except ValueError as error:  # a quotation without an end
        raise UsageError(f"%{magic.__name__}: {error}: {text}") from None


def _unquoted(text: str | None) -> str | None:
    """IPython splits words like a shell but leaves their quotes on."""
    if text is not None and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text
