"""The rooms' arrows: which part of the package may import which. Imports are read from the source, lazy ones too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tpumagic"
FRAMEWORKS = {
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "equinox",
    "torch",
    "torch_xla",
    "torch_tpu",
    "tensorflow",
    "keras",
    "mxnet",
    "libtpu",
}

VOCABULARY = {"events", "graph", "findings", "plans"}
ALLOWED: dict[str, set[str] | None] = {
    "events": {"graph", "plans"},
    "plans": {"events"},
    "memory_errors": set(),
    "codec": set(),
    "graph": {"events"},
    "findings": {"events"},
    "numbers": set(),
    "frameworks": set(),
    "sources": {"events"},
    "hlo": set(),
    "compiler": {"events", "plans", "hlo", "memory_errors", "codec", "numbers"},
    "passes": VOCABULARY | {"hlo", "sources", "numbers", "memory_errors"},
    "report": VOCABULARY | {"numbers", "codec"},
    "runtime": {"events", "numbers"},
    "stack_dump": set(),
    "user_code": {"events", "stack_dump"},
    "post_import": set(),
    "environment_watch": {"events", "user_code", "post_import"},
    "sampling": {"events", "user_code", "stack_dump"},
    "device_sampling": {"events", "runtime"},
    "backends": {
        "events",
        "graph",
        "plans",
        "compiler",
        "numbers",
        "sources",
        "user_code",
        "post_import",
        "environment_watch",
        "sampling",
        "stack_dump",
    },
    "answers": {"events", "plans", "compiler", "backends", "user_code"},
    "record": {
        "events",
        "plans",
        "backends",
        "post_import",
        "environment_watch",
        "sampling",
        "device_sampling",
        "user_code",
    },
    "session": VOCABULARY
    | {
        "answers",
        "record",
        "backends",
        "compiler",
        "passes",
        "report",
        "runtime",
        "sources",
        "user_code",
        "post_import",
        "environment_watch",
        "sampling",
        "stack_dump",
        "device_sampling",
    },
    "magics": VOCABULARY
    | {
        "frameworks",
        "session",
        "runtime",
        "report",
        "user_code",
        "backends",
        "compiler",
        "numbers",
        "record",
    },
    # The outermost rooms put the others together.
    "cells": set(),
    "output": None,
    "runner": None,
    "cli": None,
    "__main__": None,
    "__init__": None,
}
"""Room -> rooms it may import; None: any."""


def imports_of(path: Path, package: Path = PACKAGE) -> set[str]:
    """Full names of everything a module imports, anywhere in it."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def room_of(path: Path, package: Path = PACKAGE) -> str:
    first = path.relative_to(package).parts[0]
    return first.removesuffix(".py")


def wrong_arrows(package: Path = PACKAGE) -> list[str]:
    """Imports that the design forbids, as ``room/module -> what it imports``."""
    wrong = []
    for path in sorted(package.rglob("*.py")):
        room = room_of(path, package)
        where = str(path.relative_to(package))
        for name in sorted(imports_of(path, package)):
            top, *rest = name.split(".")
            if top in FRAMEWORKS and not (room == "backends" and len(path.relative_to(package).parts) > 1):
                wrong.append(f"{where} -> {name}")
            if top != "tpumagic" or not rest:
                continue
            if room not in ALLOWED:
                wrong.append(f"{where}: no room for it in the design")
                break
            allowed = ALLOWED[room]
            is_module = (package / rest[0]).is_dir() or (package / f"{rest[0]}.py").exists()
            if allowed is not None and is_module and rest[0] != room and rest[0] not in allowed:
                wrong.append(f"{where} -> {name}")
    return wrong


def test_no_room_imports_what_the_design_forbids():
    assert wrong_arrows() == []


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("passes/host.py", "from tpumagic.backends import jax"),
        ("passes/host.py", "from ..backends import jax"),
        ("report/text.py", "def f():\n    import jax\n"),
        ("events.py", "from tpumagic import session"),
        ("runtime/devices.py", "import tpumagic.session"),
        ("backends/__init__.py", "from tpumagic.magics import shell"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, module, text):
    package = tmp_path / "tpumagic"
    for folder in ("passes", "report", "runtime", "backends", "magics"):
        (package / folder).mkdir(parents=True)
    (package / "events.py").touch()
    (package / "findings.py").touch()
    (package / "session.py").touch()
    assert wrong_arrows(package) == []
    (package / module).write_text(text)
    assert len(wrong_arrows(package)) == 1


IMPORTED = "import sys; {statement}; print(sorted({{name.split('.')[0] for name in sys.modules}} & {names!r}))"


def imported_by(statement: str, names: set[str]) -> str:
    command = [sys.executable, "-c", IMPORTED.format(statement=statement, names=names)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("statement", ["import tpumagic", "import tpumagic.cli"])
def test_importing_tpumagic_imports_no_framework_and_no_ipython(statement):
    assert imported_by(statement, FRAMEWORKS | {"IPython", "ipywidgets", "anywidget", "numpy"}) == "[]"


def test_the_check_of_imports_can_fail():
    assert "'jax'" in imported_by("import tpumagic, jax", FRAMEWORKS)


def test_no_module_is_longer_than_a_reader_can_hold():
    long = {
        str(path.relative_to(PACKAGE)): n
        for path in PACKAGE.rglob("*.py")
        if (n := len(path.read_text().splitlines())) > 500
    }
    assert long == {}
