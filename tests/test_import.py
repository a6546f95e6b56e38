"""What importing and loading tpumagic brings into a process: nothing heavy, proven in processes of their own."""

import subprocess
import sys

import pytest

FRAMEWORKS = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "torch",
    "torch_xla",
    "torch_tpu",
    "tensorflow",
    "keras",
    "mxnet",
    "libtpu",
    "numpy",
)
VIEWS = ("IPython", "ipywidgets", "anywidget", "traitlets")


def imported(statement: str, names: tuple[str, ...]) -> list[str]:
    code = (
        f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}} & {set(names)!r}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()[-1].split()


LOADED = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "tpumagic")
assert shell.find_cell_magic("tpu_profile")
"""


def test_importing_tpumagic_imports_no_framework_and_no_view():
    assert imported("import tpumagic", FRAMEWORKS + VIEWS) == []


def test_the_names_of_tpumagic_are_there_without_importing_what_is_behind_them():
    assert imported("import tpumagic; dir(tpumagic); assert 'profile' in dir(tpumagic)", FRAMEWORKS + VIEWS) == []
    assert imported("import tpumagic; tpumagic.profile; tpumagic.last_report()", FRAMEWORKS + VIEWS) == []


def test_loading_the_extension_imports_no_framework():
    assert imported(LOADED, (*FRAMEWORKS, "anywidget", "ipywidgets")) == []


def test_profiling_a_cell_imports_no_framework():
    assert imported(LOADED + 'shell.run_cell("%%tpu_profile\\nx = 1")', (*FRAMEWORKS, "anywidget", "ipywidgets")) == []


@pytest.mark.parametrize("module", ["IPython", "jax"])
def test_the_check_can_fail(module):
    assert module in imported(f"import tpumagic\nimport {module}", FRAMEWORKS + VIEWS)


def test_an_unknown_name_is_told_as_for_any_module():
    import tpumagic

    with pytest.raises(AttributeError, match="module 'tpumagic' has no attribute 'nosuch'"):
        tpumagic.nosuch
