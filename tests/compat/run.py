"""Run the tests on other versions of Python, IPython and JAX, each in an environment of its own (.venv-NAME).

usage: run.py [NAME ...]    (all environments without a name)

An environment whose Python is not on this machine is left out, and said so: nobody needs four interpreters to work on
tpumagic. Exit status 1 if tests failed.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TESTS = ("tests/backends", "tests/magics", "tests/passes", "tests/test_runner.py")
STOCK_PAIR = ("tests/compat/test_stock_pair.py", "-m", "not compiler")
"""Of environments whose libtpu does not go with their JAX, as on hosted notebooks: what the other tests ask of a compiler
is not theirs to answer."""
COMPILER = (
    "tests/hlo",
    "tests/compiler",
    "tests/test_session_targets.py",
    "--ignore=tests/compiler/golden",
    "--ignore=tests/compiler/test_worker_real.py",
)
"""Golden figures and the last byte of memory are those of one compiler."""


@dataclass(frozen=True)
class Environment:
    """A set of pinned packages (NAME.txt beside this file) and the Python versions it can be made with, best first."""

    name: str
    holds: str
    pythons: tuple[str, ...]
    tests: tuple[str, ...] = TESTS

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.name}"

    @property
    def requirements(self) -> Path:
        return HERE / f"{self.name}.txt"


ENVIRONMENTS = (
    Environment("colab", "jax 0.7.2 and IPython 7.34, as on Colab", ("3.13",), (*TESTS, "tests/hlo", *STOCK_PAIR)),
    Environment(
        "kaggle",
        "jax 0.7.2 with libtpu 0.0.17, as on Kaggle",
        ("3.12",),
        ("tests/magics", "tests/runtime", *STOCK_PAIR),
    ),
    Environment("newest", "jax 0.12 with libtpu 0.0.50", ("3.12", "3.13"), (*TESTS, *COMPILER)),
)


def interpreter(versions: tuple[str, ...]) -> str | None:
    """A Python of one of these versions that can make environments: from PATH, else from pyenv's folder."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    for version in versions:
        on_path = shutil.which(f"python{version}")
        found = sorted(glob.glob(f"{glob.escape(pyenv)}/versions/{version}.*/bin/python"))
        for candidate in [on_path] * bool(on_path) + found:
            probe = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
            if subprocess.run([candidate, "-c", probe], capture_output=True).returncode == 0:
                return candidate
    return None


def make(environment: Environment, python: str) -> Path:
    """Make or renew the environment; gives its Python."""
    inputs = environment.requirements.read_bytes() + (ROOT / "pyproject.toml").read_bytes()
    wanted = hashlib.sha256(inputs).hexdigest()
    stamp = environment.folder / "made-of"
    own = environment.folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([python, "-m", "venv", "--clear", environment.folder], check=True)
        install = [own, "-m", "pip", "install", "--quiet", "-r", environment.requirements, "-e", ROOT]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return own


def main(names: list[str]) -> int:
    known = {environment.name: environment for environment in ENVIRONMENTS}
    if unknown := sorted(set(names) - set(known)):
        print(f"no environment {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    left_out: list[str] = []
    failed: list[str] = []
    for environment in (known[name] for name in names or known):
        python = interpreter(environment.pythons)
        if python is None:
            wanted = " or ".join(environment.pythons)
            left_out.append(f"Python {wanted} is not on this machine: {environment.holds} was not tested.")
            continue
        print(f"== {environment.name}: {environment.holds}", flush=True)
        if (
            subprocess.run([make(environment, python), "-m", "pytest", "-q", *environment.tests], cwd=ROOT).returncode
            != 0
        ):
            failed.append(environment.name)
    for sentence in left_out:
        print(f"{'!!! NOT TESTED: ' if os.environ.get('CI') else ''}{sentence}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
