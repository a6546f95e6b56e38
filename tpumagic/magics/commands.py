"""The magics a user types: ``%tpu_profile``, ``%tpu_auto``, ``%tpu_last`` and ``%tpu_env``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, needs_local_scope, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from tpumagic.magics.display import publish, show
from tpumagic.magics.hooks import Hooks, Options
from tpumagic.magics.statement import profile_body, profile_statement
from tpumagic.magics.transform import split_statement

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from IPython.core.magic import output_can_be_silenced
except ImportError:  # IPython before 8.4, where no magic's value can be silenced with `;`

    def output_can_be_silenced(magic_func: Callable[..., Any]) -> Callable[..., Any]:
        """Leave a magic as it is."""
        return magic_func


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
    @argument("--name", help="a name for this profile")
    @argument("--quiet", action="store_true", help="keep the report for %%tpu_last and show nothing")
    @argument("--widget", action="store_true", help="show the live view beside the static report (needs anywidget)")
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
        help="set this framework up and prove that it computes: jax, torch_xla, torch_tpu, keras, tensorflow or mxnet",
    )
    @argument(
        "--cache", metavar="DIR", help="with jax or keras: keep compiled programs in this directory, small ones too"
    )
    @argument("--preview", action="store_true", help="with a framework: only say what would be done")
    @argument("--undo", action="store_true", help="put back every variable and setting that %%tpu_env has changed")
    def tpu_env(self, line: str) -> None:
        """Show what this machine has for TPUs and what is wrong with it; with a framework's name, set that up."""
        from tpumagic.magics import environment

        arguments = _parse(self.tpu_env, line)
        framework, cache = arguments.backend, _unquoted(arguments.cache)
        if arguments.undo:
            if framework or cache or arguments.preview:
                raise UsageError("--undo stands alone, as in `%tpu_env --undo`: it puts back all that was changed.")
            _show_card(self.shell, environment.undo())
        elif framework is None:
            for option in ("cache", "preview"):
                if getattr(arguments, option):
                    value = " DIR" if option == "cache" else ""
                    raise UsageError(f"--{option} goes with a framework: %tpu_env jax --{option}{value}")
            _show_card(self.shell, environment.card())
        elif framework not in environment.FRAMEWORKS:
            known = ", ".join(environment.FRAMEWORKS)
            raise UsageError(f"%tpu_env does not know the framework {framework!r}; it can set up: {known}")
        elif cache is not None and framework not in environment.CACHING:
            raise UsageError(f"--cache goes with {' and '.join(environment.CACHING)} only.")
        elif arguments.preview:
            _show_card(self.shell, environment.preview(framework))
        else:
            _show_card(self.shell, environment.set_up(framework, cache, self.shell.user_ns))


def parse_options(text: str) -> Options:
    """The options of ``%%tpu_profile``. Raises UsageError."""
    arguments = _parse(TpuMagics.tpu_profile, text)
    return Options(name=_unquoted(arguments.name), quiet=arguments.quiet, widget=arguments.widget)


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
