"""A file run cell by cell does what it does without tpumagic. Every test runs the real command in a process."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def cells(self):
        return json.loads(self.out)["cells"]


def command(*arguments):
    return [sys.executable, "-m", "tpumagic", *map(str, arguments)]


@pytest.fixture
def run(tmp_path):
    def run(source, *arguments, name="script.py", before=("--json", "-"), env=(), **options):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source) if isinstance(source, str) else json.dumps(source))
        script = ["--", *arguments] if arguments else []
        done = subprocess.run(
            command("run", path, *before, *script),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", **dict(env)},
            timeout=120,
            **options,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


def notebook(*sources):
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": s} for s in sources
    ]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}


# Scripts: as `python FILE` would.


def test_standard_output_is_the_report_and_nothing_else(run):
    done = run(
        """
        import ctypes, os, subprocess, sys
        print("from python")
        os.write(1, b"from the descriptor\\n")
        subprocess.run(["echo", "from a child"])
        ctypes.CDLL(None).puts(b"from C")
        sys.__stdout__.write("from the original stream\\n")
        """
    )
    answer = json.loads(done.out)
    assert (answer["version"], answer["file"].endswith("script.py"), len(answer["cells"])) == (1, True, 1)
    for text in ("from python", "from the descriptor", "from a child", "from C", "from the original stream"):
        assert text in done.err
    assert done.status == 0


def test_each_cell_has_a_report_and_names_live_on(run):
    done = run("# %% one\na = 1\n# %%\nassert a == 1\n# %%\nprint(a)\n")
    assert (done.status, [cell["name"] for cell in done.cells]) == (0, ["one", None, None])


def test_the_main_module_file_arguments_and_path_are_those_of_a_script(run, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text("value = 7\n")
    done = run(
        """
        import os, sys, __main__, beside
        assert __name__ == "__main__" and __main__.__dict__ is globals()
        assert os.path.isabs(__file__) and __file__.endswith("script.py")
        assert sys.argv[0].endswith("script.py") and sys.argv[1:] == ["--json", "x", "--", "y"], sys.argv
        assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
        assert beside.value == 7 and __spec__ is None and __package__ is None
        """,
        "--json", "x", "--", "y",
        name="folder/script.py",
    )  # fmt: skip
    assert done.status == 0, done.err


def test_pickle_dataclasses_and_inspect_find_the_script(run):
    done = run(
        """
        # %%
        import dataclasses, inspect, pickle, typing
        @dataclasses.dataclass
        class Point:
            x: "int"
        # %%
        def double(p):
            return Point(p.x * 2)
        assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
        assert inspect.getsource(double).startswith("def double(p):")
        assert inspect.getsource(Point).startswith("@dataclasses.dataclass")
        assert typing.get_type_hints(Point) == {"x": int}
        """
    )
    assert done.status == 0, done.err


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_a_script_starts_find_its_functions(run, method):
    done = run(
        f"""
        import multiprocessing
        def square(n):
            return n * n
        # %%
        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
        """
    )
    assert (done.status, len(done.cells)) == (0, 2), done.err


def test_a_forked_child_that_falls_off_the_end_writes_no_report(run):
    done = run("import os\nif os.fork():\n    os.wait()\n# %%\nprint('both', flush=True)\n")
    assert (done.status, len(done.cells), done.err.count("both")) == (0, 2, 2)


def test_future_imports_hold_for_later_cells(run):
    done = run(
        "from __future__ import annotations\n# %%\ndef f(x: NotDefined): ...\nassert f.__annotations__['x'] == 'NotDefined'\n"
    )
    assert done.status == 0, done.err


def test_our_own_future_imports_do_not_leak_into_the_script(run):
    done = run("def f(x: int): ...\nassert f.__annotations__['x'] is int\n")
    assert done.status == 0, done.err


def test_expressions_of_a_script_are_not_echoed(run):
    assert run("1 + 1\n", before=("--html", "page.html")).out == ""


def test_a_failing_cell_ends_the_run_with_status_1_and_the_users_own_traceback(run):
    done = run("# %%\nprint('first')\n# %%\n\ndef f():\n    raise ValueError('broken')\nf()\n# %%\nprint('never')\n")
    assert done.status == 1
    assert len(done.cells) == 2
    assert done.cells[1]["cell"]["failure"] == "ValueError"
    assert "never" not in done.err
    shown = done.err[done.err.index("Traceback") :].splitlines()
    assert [line.strip().split(", line ")[1] for line in shown if line.startswith("  File")] == [
        "7, in <module>",
        "6, in f",
    ]
    assert shown[-1] == "ValueError: broken"
    assert "tpumagic" not in done.err


def test_a_traceback_is_pythons_own_word_for_word(run, tmp_path):
    source = (
        "def f(n):\n    return 1 / n\ntry:\n    f(0)\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n"
    )
    done = run(source)
    bare = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert done.err == bare.stderr


def test_a_syntax_error_is_shown_at_its_line_after_the_cells_before_it_ran(run):
    done = run("# %%\nprint('ran')\n# %%\nx = = 1\n")
    assert done.status == 1
    assert "ran" in done.err
    assert 'script.py", line 4' in done.err
    assert "SyntaxError" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("statement", "status", "said"),
    [("sys.exit()", 0, ""), ("sys.exit(0)", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('no data')", 1, "no data\n")],
)
def test_sys_exit_ends_the_run_with_its_own_status(run, statement, status, said):
    done = run(f"import sys\n{statement}\n# %%\nprint('never')\n")
    assert (done.status, done.err, len(done.cells)) == (status, said, 1)


def test_an_interrupt_still_leaves_a_report(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n# %%\nprint('never')\n")
    process = subprocess.Popen(
        command("run", path, "--json", "-"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(json.loads(out)["cells"]) == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in err


def test_without_a_destination_reports_are_printed_as_text_between_the_output(run):
    done = run("# %% load\nprint('one')\n# %% train\nprint('two')\n", before=())
    lines = done.out.splitlines()
    assert lines.index("one") < next(n for n, line in enumerate(lines) if "load" in line) < lines.index("two")


def test_json_and_html_can_be_written_to_files_while_the_output_stays(run, tmp_path):
    done = run("print('hello')\n", before=("--json", "out.json", "--html", "out.html"))
    assert (done.status, done.out) == (0, "hello\n")
    assert len(json.loads((tmp_path / "out.json").read_text())["cells"]) == 1
    assert "<html" in (tmp_path / "out.html").read_text()


def test_jax_is_neither_imported_nor_started_before_the_script_does_it(run):
    done = run(
        """
        import os, sys
        assert "jax" not in sys.modules
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
        import jax
        assert jax.device_count() == 2
        """
    )
    assert done.status == 0, done.err


def test_findings_carry_the_lines_of_the_file(run):
    done = run(
        """\
        import jax, jax.numpy as jnp
        # %%
        @jax.jit
        def step(x):
            return x * 2
        # %%
        for n in (8, 8, 5):
            step(jnp.ones(n))
        """
    )
    assert done.status == 0, done.err
    findings = [
        (f["kind"], f["site"]["line"]) for cell in done.cells for f in cell["findings"] if f["severity"] != "info"
    ]
    assert findings == [("recompile.shape", 8)]


# For a TPU that is not there.


MESH = """\
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), ("data",))
# %%
x = jax.device_put(jnp.ones((64, 128)), NamedSharding(mesh, P("data")))
total = jax.jit(lambda v: (v @ v.T).sum())
print("total", float(total(x)))
"""


def test_a_target_gives_the_script_its_number_of_devices_before_jax_starts(run):
    source = "import os, jax\nassert jax.device_count() == 8, jax.device_count()\nassert os.environ['XLA_FLAGS']\n"
    done = run(source, before=("--target", "v3-8", "--json", "-"), env={"XLA_FLAGS": ""})
    assert done.status == 0, done.err
    done = run(notebook(source), name="book.ipynb", before=("--target", "v3-8", "--json", "-"), env={"XLA_FLAGS": ""})
    assert done.status == 0, done.err


def test_what_the_script_sets_itself_counts_more(run):
    source = (
        "import os\nos.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'\n"
        "import jax\nassert jax.device_count() == 2\n"
    )
    assert run(source, before=("--target", "v5e-8", "--json", "-")).status == 0


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    pytest.importorskip("libtpu", reason="the TPU compiler is part of libtpu, which exists for Linux on x86_64 only")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def targets_of(done):
    return {
        p["name"]: [(t["name"], t["fits"]) for t in p["targets"]]
        for c in done.cells
        for p in c["programs"]
        if p["targets"]
    }


def pending_of(done):
    return [t["pending"] for c in done.cells for p in c["programs"] for t in p["targets"]]


@pytest.mark.compiler
def test_a_sharded_script_is_compiled_for_the_whole_target(run, compiler):
    done = run(MESH, before=("--target", "v5e-8", "--json", "-"), env={"XLA_FLAGS": ""})
    assert done.status == 0, done.err
    assert "total 524288.0" in done.err
    assert targets_of(done) == {"<lambda>": [("v5e-8", True)]}
    assert not any(pending_of(done))


@pytest.mark.compiler
def test_in_a_notebook_a_cell_may_name_its_own_target_and_dry_runs_have_the_runs(run, compiler):
    book = notebook(
        "import jax, jax.numpy as jnp, tpumagic\n@jax.jit\ndef f(x):\n    return x + 1",
        "y = f(jnp.ones(8))",
        "%%tpu_profile --target v5e-1\ny = f(jnp.ones(16))",
        "assert tpumagic.dry_run(f, jnp.ones(24)).programs[0].targets[0].name == 'v6e-1'",
    )
    done = run(book, name="book.ipynb", before=("--target", "v6e-1", "--json", "-"))
    assert done.status == 0, done.err
    named = [[t["name"] for p in cell["programs"] for t in p["targets"]] for cell in done.cells]
    assert named[:3] == [[], ["v6e-1"], ["v5e-1"]]
    assert not any(pending_of(done))


@pytest.mark.compiler
def test_cost_waits_for_the_estimate_of_every_program(run, compiler):
    done = run(
        "import jax, jax.numpy as jnp\ny = jax.jit(lambda v: jnp.tanh(v @ v))(jnp.ones((256, 256)))\n",
        before=("--target", "v5e-1", "--cost", "--json", "-"),
    )
    assert done.status == 0, done.err
    costs = [t["cost"] is not None for p in done.cells[0]["programs"] for t in p["targets"]]
    assert costs == [True]


# Notebooks: as a kernel would.


def test_a_notebook_runs_in_ipython_with_await_magics_and_history(run):
    done = run(
        notebook(
            "import asyncio\nawait asyncio.sleep(0)\nx = 20",
            "%timeit -n1 -r1 x\nx + 1",
            "assert _ == 21 and Out[2] == 21\nimport sys, os\nassert get_ipython().user_ns is not None",
            "async def g():\n    yield 3\nasync for n in g():\n    print('got', n)",
        ),
        name="book.ipynb",
    )
    assert done.status == 0, done.err
    assert [cell["cell"]["count"] for cell in done.cells] == [1, 2, 3, 4]
    assert "got 3" in done.err


def test_a_notebook_runs_in_its_own_folder(run, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text("value = 7\n")
    done = run(notebook("import beside\nassert open('beside.py').read() == 'value = 7\\n'"), name="folder/book.ipynb")
    assert done.status == 0, done.err


def test_a_notebook_may_load_and_use_the_extension_itself(run):
    done = run(
        notebook(
            "%load_ext tpumagic",
            "%%tpu_profile --name mine\nx = 1",
            "%reload_ext tpumagic\ny = x",
            "assert (x, y) == (1, 1)",
        ),
        name="book.ipynb",
    )
    assert done.status == 0, done.err
    assert [cell["name"] for cell in done.cells if cell["cell"]["count"] == 2] == ["mine"]
    assert [cell["cell"]["count"] for cell in done.cells if cell["cell"]["count"] == 4] == [4]


def test_a_failing_notebook_cell_ends_the_run_with_status_1(run):
    done = run(notebook("x = 1", "1 / 0", "print('never')"), name="book.ipynb")
    assert (done.status, len(done.cells)) == (1, 2)
    assert done.cells[1]["cell"]["failure"] == "ZeroDivisionError"
    assert "ZeroDivisionError: division by zero" in done.err
    assert "never" not in done.err
    assert "tpumagic" not in done.err


def test_a_notebook_goes_on_after_a_cell_that_is_meant_to_fail(run):
    book = notebook("x = 1", "1 / 0", "y = x\nprint('went on')", "2 / 0", "print('never')")
    book["cells"][1]["metadata"] = {"tags": ["raises-exception"]}
    done = run(book, name="book.ipynb")
    assert [cell["cell"]["failure"] for cell in done.cells] == [None, "ZeroDivisionError", None, "ZeroDivisionError"]
    assert "went on" in done.err
    assert "never" not in done.err
    assert done.status == 1
    book["cells"] = book["cells"][:3]
    assert run(book, name="book.ipynb").status == 0


def test_a_cell_that_may_fail_can_still_end_the_run(run):
    book = notebook("import sys\nsys.exit(3)", "print('never')")
    book["cells"][0]["metadata"] = {"tags": ["raises-exception"]}
    done = run(book, name="book.ipynb")
    assert done.status == 3
    assert "never" not in done.err


def test_a_syntax_error_in_a_notebook_ends_the_run_with_status_1(run):
    done = run(notebook("x = = 1", "print('never')"), name="book.ipynb")
    assert done.status == 1
    assert "SyntaxError" in done.err
    assert "never" not in done.err


def test_sys_exit_in_a_notebook_ends_the_run_with_its_own_status(run):
    done = run(notebook("import sys\nsys.exit(4)", "print('never')"), name="book.ipynb")
    assert done.status == 4
    assert "never" not in done.err


def test_findings_in_a_notebook_carry_cell_and_line(run):
    done = run(
        notebook(
            "import jax, jax.numpy as jnp\n@jax.jit\ndef step(x):\n    return x * 2",
            "for n in (8, 8, 5):\n    step(jnp.ones(n))",
        ),
        name="book.ipynb",
    )
    assert done.status == 0, done.err
    loud = [f for cell in done.cells for f in cell["findings"] if f["severity"] != "info"]
    assert [(f["kind"], f["site"]["cell"], f["site"]["line"]) for f in loud] == [("recompile.shape", 2, 2)]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
def test_a_file_whose_name_is_no_text_can_be_reported_as_json(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.py")
    path.write_text("x = 1\n")
    done = subprocess.run(command("run", path, "--json", "-"), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["cells"]) == 1
