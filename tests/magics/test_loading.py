"""Loading, reloading and unloading; completion; a terminal."""

import subprocess
import sys

import IPython
import pytest

pytestmark = pytest.mark.kernel

HAS_MATCHERS = IPython.version_info >= (8, 6)

TRACES = """
def traces():
    import gc, threading
    ip = get_ipython()
    found = [name for table in ip.magics_manager.magics.values() for name in table if "tpu" in name]
    found += [name for name in ip.magics_manager.registry if "Tpu" in name]
    found += [type(one).__name__ for one in ip.configurables if type(one).__module__.startswith("tpumagic")]
    for steps in (ip.input_transformers_cleanup, ip.input_transformers_post, ip.ast_transformers):
        found += [repr(step) for step in steps if "tpumagic" in type(step).__module__]
    for event, callbacks in ip.events.callbacks.items():
        found += [event for one in callbacks if "tpumagic" in getattr(one, "__module__", "")]
    found += [str(one) for one in getattr(ip.Completer, "custom_matchers", [])]
    found += [name for name in vars(ip.compile) if name == "cache"]
    found += [thread.name for thread in threading.enumerate() if "tpumagic" in thread.name]
    return sorted(found)
"""


def test_unloading_leaves_nothing_behind(fresh_kernel):
    fresh_kernel.run(TRACES)
    before = fresh_kernel.value("traces()")
    events = fresh_kernel.value(
        "{event: len(callbacks) for event, callbacks in get_ipython().events.callbacks.items()}"
    )
    assert before == []
    fresh_kernel.run("%load_ext tpumagic")
    assert "tpu_profile" in fresh_kernel.value("traces()")
    assert len(fresh_kernel.run("%%tpu_profile\npass").reports) == 1
    ran = fresh_kernel.run("%unload_ext tpumagic")
    assert ran.outputs == []
    assert fresh_kernel.value("traces()") == []
    after = fresh_kernel.value("{event: len(callbacks) for event, callbacks in get_ipython().events.callbacks.items()}")
    assert after == events
    ran = fresh_kernel.run("%%tpu_profile\n1")
    assert "Cell magic `%%tpu_profile` not found" in ran.text("stderr")


def test_reloading_keeps_one_of_everything(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    for line in (
        "%reload_ext tpumagic",
        "%load_ext tpumagic",
        "import tpumagic; tpumagic.load_ipython_extension(get_ipython())",
    ):
        assert fresh_kernel.run(line).status == "ok"
        assert len(fresh_kernel.run("%%tpu_profile\npass").reports) == 1
    fresh_kernel.run(TRACES + "\n%unload_ext tpumagic")
    assert fresh_kernel.value("traces()") == []


def test_unloading_in_a_profiled_cell_ends_its_profile(fresh_kernel):
    fresh_kernel.run("%load_ext tpumagic")
    ran = fresh_kernel.run("%%tpu_profile\n%unload_ext tpumagic\nprint('on')")
    assert ran.status == "ok"
    assert ran.text("stdout") == "on\n"
    assert ran.reports == []
    fresh_kernel.run(TRACES)
    assert fresh_kernel.value("traces()") == []


def test_unloading_without_loading_is_harmless(fresh_kernel):
    assert fresh_kernel.run("import tpumagic; tpumagic.unload_ipython_extension(get_ipython())").status == "ok"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("%%tpu_profile ", ["--cost", "--name", "--quiet", "--target", "--widget"]),
        ("%%tpu_profile --q", ["--quiet"]),
        ("%%tpu_profile --quiet --", ["--cost", "--name", "--target", "--widget"]),
        ("%%tpu_profile --target v6e-1", ["v6e-1", "v6e-128", "v6e-16"]),
        ("%%tpu_profile --target=tpu7x-2", ["tpu7x-2", "tpu7x-2048", "tpu7x-256"]),
        ("%tpu_dryrun --", ["--cost", "--remedies", "--target"]),
        ("%%tpu_dryrun --target v5e-8 --c", ["--cost"]),
        ("%tpu_env --target no", ["none"]),
        ("%tpu_profile --w", ["--widget"]),
        ("%tpu_auto ", ["off", "on"]),
        ("%tpu_auto of", ["off"]),
        ("%tpu_env j", ["jax"]),
    ],
)
def test_options_are_completed(kernel, typed, expected):
    if HAS_MATCHERS:
        assert kernel.complete(typed) == expected
    else:  # no way to add completions that can be taken back: typing goes on as before
        assert "--level" not in kernel.complete(typed)


def test_the_magics_names_are_completed(kernel):
    assert "%%tpu_profile" in kernel.complete("%%tpu_pro")


def test_in_the_body_python_is_completed(kernel):
    kernel.run("import os")
    assert any("path" in match for match in kernel.complete("%%tpu_profile\nos.pat"))
    assert not any("--quiet" in match for match in kernel.complete("%tpu_profile os.pat"))


def test_behind_the_options_of_a_dry_run_the_users_names_are_completed(kernel):
    kernel.run("import os\na_very_long_function = print")
    for typed, expected in (
        ("%tpu_dryrun os.pathse", "pathsep"),
        ("%tpu_dryrun --target v5e-8 os.pathse", "pathsep"),
        ("%tpu_dryrun --cost print(a_very_lo", "a_very_long_function"),
        ("%%tpu_dryrun\na_very_lo", "a_very_long_function"),
    ):
        assert any(match.endswith(expected) for match in kernel.complete(typed)), typed


def test_a_console_reads_on_until_an_empty_line(kernel):
    assert kernel.is_complete("%%tpu_profile") == "incomplete"
    assert kernel.is_complete("%%tpu_profile\nx = 1") == "incomplete"
    assert kernel.is_complete("%%tpu_profile\nx = 1\n\n") == "complete"
    assert kernel.is_complete("x = 1") == "complete"


def test_a_terminal_shows_the_report_as_text():
    typed = "%load_ext tpumagic\n%%tpu_profile\nx = 20\nx + 1\n\n\n%tpu_last\n%%tpu_profile --nope\nprint('has ' + 'run')\n\n\n"
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--simple-prompt", "--colors=NoColor", "--HistoryManager.enabled=False"],
        input=typed, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    out = ran.stdout + ran.stderr
    assert "Out[2]: 21" in out
    assert out.count("Nothing to report") == 2
    assert "UsageError: unrecognized arguments: --nope" in out
    assert "has run" not in out
