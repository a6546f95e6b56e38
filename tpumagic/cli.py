"""The command line: ``tpumagic run FILE``, ``tpumagic env``, ``tpumagic targets`` and ``tpumagic compiler``.

Standard output is the answer and nothing else; whatever is wrong with a request is one sentence on standard error and
exit status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import tpumagic
from tpumagic.frameworks import FRAMEWORKS, ON_JAX
from tpumagic.magics import options as magic_options

if TYPE_CHECKING:
    from tpumagic.plans import Target

USAGE_ERROR = 2


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    """A parser that answers a wrong request with one sentence."""

    def error(self, message: str) -> NoReturn:
        """End with the sentence and where to read more."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line asks and end with its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    parser = _make_parser()
    options = parser.parse_args(given[:end])
    if given[end:] and options.command != "run":
        parser.error("only `run` takes arguments after `--`")
    try:
        status = options.do(options, given[end + 1 :])
        sys.stdout.flush()
    except UsageError as error:
        print(f"tpumagic {options.command}: {error}", file=sys.stderr)
        status = USAGE_ERROR
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`): the interpreter's last flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
    sys.exit(status)


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tpumagic", description="Shows what code does on a TPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tpumagic {tpumagic.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        allow_abbrev=False,
        help="run a script or a notebook cell by cell and report on each cell",
        usage="tpumagic run FILE [--target TARGET] [--cost] [--json PATH] [--html PATH] [-- ARGUMENT ...]",
        description=(
            "Runs a .py file as `python FILE` would, or the code cells of an .ipynb file in its folder, and reports on "
            "each cell. A script is cut into cells at its `# %%` comments; without any it is one cell. Without --json "
            "and --html the reports are printed as text. With --target, JAX has as many CPU devices as the target, unless "
            "this machine has a TPU."
        ),
        epilog="Exit status: 0, or 1 if a cell failed, 2 for a wrong request, 130 after Ctrl-C, or what the file exits with.",
    )
    run.add_argument("file", metavar="FILE", type=Path, help="a .py or .ipynb file")
    run.add_argument(
        "--json",
        metavar="PATH",
        help="write the reports as JSON; `-` is standard output, which then holds nothing else: what the file prints "
        "goes to standard error",
    )
    run.add_argument("--html", metavar="PATH", help="write the reports as one HTML page")
    for option in (magic_options.TARGET, magic_options.COST):
        run.add_argument(option.flag, **option.arguments)
    run.set_defaults(do=_run)

    environment = commands.add_parser(
        "env",
        allow_abbrev=False,
        help="what this machine has for TPUs, and what is wrong",
        description="Shows host, chips, frameworks and their problems. With a framework, sets it up and proves that it computes.",
    )
    environment.add_argument("backend", nargs="?", choices=FRAMEWORKS, help="set this framework up and try it")
    for option in (magic_options.CACHE, magic_options.PREVIEW):
        environment.add_argument(option.flag, **option.arguments)
    environment.add_argument("--json", metavar="-", choices=["-"], help="`-`: print the card as JSON")
    environment.set_defaults(do=_environment)

    targets = commands.add_parser(
        "targets",
        allow_abbrev=False,
        help="the TPUs that can be compiled for",
        description="Lists the targets: chips, devices as JAX counts them, memory and peak figures per device, sources.",
    )
    targets.add_argument("--json", metavar="-", choices=["-"], help="`-`: print the list as JSON")
    targets.set_defaults(do=_targets)

    compiler = commands.add_parser(
        "compiler",
        allow_abbrev=False,
        help="which TPU compiler is used, or one of tpumagic's own",
        description="Says which libtpu compiles for a TPU that is not there, or fetches one with pip into your cache, "
        "which changes nothing for your programs.",
    )
    compiler.add_argument("action", metavar="status|install", choices=["status", "install"], help="what to do")
    compiler.set_defaults(do=_compiler)
    return parser


def _run(options: argparse.Namespace, script_arguments: Sequence[str]) -> int:
    """``tpumagic run``: reads the file and makes sure that the answer can be written before anything is executed."""
    from tpumagic import cells, output, runner

    target = _target(options)
    try:
        file_cells = cells.read(options.file)
        reports_to = output.Destinations.open(options.file, options.json, options.html)
    except (cells.UnreadableFileError, output.UnwritableError) as error:
        raise UsageError(str(error)) from None
    run_file = runner.run_notebook if options.file.suffix == ".ipynb" else runner.run_script
    outcome = run_file(options.file, file_cells, script_arguments, reports_to.show, runner.Wish(target, options.cost))
    try:
        reports_to.write(outcome.reports)
    except output.UnwritableError as error:
        raise UsageError(str(error)) from None
    return outcome.status


def _target(options: argparse.Namespace) -> Target | None:
    """What to compile for; None if nothing is asked for, or the programs' own compiler tells the cost."""
    from tpumagic.magics import targets

    if options.target is not None:
        try:
            return targets.parse(options.target)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if options.cost and targets.of_this_host() is None:
        raise UsageError("--cost needs a target on a machine without a TPU: tpumagic run FILE --target v5e-1 --cost.")
    return None


def _environment(options: argparse.Namespace, _: Sequence[str]) -> int:
    """``tpumagic env``: the card, or how setting up a framework went; exit status 1 if that failed."""
    from tpumagic.magics import environment

    if options.cache and not options.backend:
        raise UsageError("--cache needs the framework whose cache it is: tpumagic env jax --cache DIR.")
    if options.cache and options.backend not in ON_JAX:
        raise UsageError(f"--cache goes with {' and '.join(ON_JAX)} only.")
    if options.preview and not options.backend:
        raise UsageError("--preview needs a framework: tpumagic env jax --preview.")
    if options.preview:
        answer = environment.preview(options.backend)
    elif options.backend:
        answer = environment.set_up(options.backend, options.cache, for_shell=True)
    else:
        answer = environment.card()
    data = answer["application/json"]
    print(json.dumps({"version": 1, **data}, ensure_ascii=False) if options.json else answer["text/plain"])
    return 0 if data.get("ok", True) else 1


def _targets(options: argparse.Namespace, _: Sequence[str]) -> int:
    """``tpumagic targets``."""
    from tpumagic.magics import targets_table

    print(json.dumps(targets_table.data(), ensure_ascii=False) if options.json else targets_table.text())
    return 0


def _compiler(options: argparse.Namespace, _: Sequence[str]) -> int:
    """``tpumagic compiler``; exit status 1 if an installation failed."""
    from tpumagic.compiler import install

    if options.action == "status":
        print("\n".join(install.status()))
        return 0
    try:
        print(install.install(lambda sentence: print(sentence, flush=True)))
    except install.InstallError as error:
        print(f"tpumagic compiler install: {error}", file=sys.stderr)
        return 1
    return 0
