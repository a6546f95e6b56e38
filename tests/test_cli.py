"""The command line answers every wrong request in one sentence, with status 2 and no traceback."""

import json
import os
import stat
import subprocess
import sys

import pytest

import tpumagic
from tpumagic.compiler.targets import parse_target


def tpumagic_command(*arguments, cwd=None, env=()):
    return subprocess.run(
        [sys.executable, "-m", "tpumagic", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", **dict(env)},
        timeout=120,
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("print('ran')\n")
    return path


def test_the_version_is_printed():
    done = tpumagic_command("--version")
    assert (done.returncode, done.stdout) == (0, f"tpumagic {tpumagic.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [("--help",), *((command, "--help") for command in ("run", "env", "targets", "compiler"))]
)
def test_help_is_printed(arguments):
    done = tpumagic_command(*arguments)
    assert done.returncode == 0
    assert "usage: tpumagic" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "tpumagic: the following arguments are required: COMMAND (see tpumagic --help)"),
        (("run",), "tpumagic run: the following arguments are required: FILE (see tpumagic run --help)"),
        (("run", "script.py", "--jsn", "-"), "tpumagic: unrecognized arguments: --jsn - (see tpumagic --help)"),
        (
            ("run", "script.py", "--json"),
            "tpumagic run: argument --json: expected one argument (see tpumagic run --help)",
        ),
        (
            ("run", "script.py", "--target", "v6e-3"),
            "tpumagic run: There is no target 'v6e-3': known of v6e are v6e-1, v6e-4, v6e-8, v6e-16, v6e-32, v6e-64, v6e-128, v6e-256.",
        ),
        (
            ("run", "script.py", "--cost"),
            "tpumagic run: --cost needs a target on a machine without a TPU: tpumagic run FILE --target v5e-1 --cost.",
        ),
        (
            ("targets", "v5e-8"),
            "tpumagic: unrecognized arguments: v5e-8 (see tpumagic --help)",
        ),
        (
            ("compiler",),
            "tpumagic compiler: the following arguments are required: status|install (see tpumagic compiler --help)",
        ),
        (("run", "gone.py"), "tpumagic run: There is no file gone.py."),
        (("run", "."), "tpumagic run: . is a folder, not a file."),
        (
            ("run", "script.py", "--json", "no/where.json"),
            "tpumagic run: cannot write to no/where.json: there is no folder {cwd}/no.",
        ),
        (("run", "script.py", "--html", "folder"), "tpumagic run: cannot write to folder: it is a folder."),
        (("env", "--", "x"), "tpumagic: only `run` takes arguments after `--` (see tpumagic --help)"),
        (
            ("env", "jax", "--json", "x"),
            "tpumagic env: argument --json: invalid choice: 'x' (choose from -) (see tpumagic env --help)",
        ),
    ],
)
def test_a_wrong_request_is_answered_in_one_sentence_and_nothing_runs(tmp_path, script, arguments, sentence):
    (tmp_path / "folder").mkdir()
    done = tpumagic_command(*arguments, cwd=tmp_path)
    said = done.stderr.replace("choose from '-'", "choose from -")
    assert (done.returncode, done.stdout, said) == (2, "", sentence.format(cwd=tmp_path) + "\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_answered_before_the_file_runs(tmp_path, script):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = tpumagic_command("run", script, "--json", closed / "out.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tpumagic run: cannot write to {closed}/out.json: permission denied.\n"


def test_a_device_that_is_full_is_answered_in_one_sentence(script):
    done = tpumagic_command("run", script, "--json", "/dev/full")
    assert done.returncode == 2
    assert done.stderr == "tpumagic run: cannot write to /dev/full: No space left on device.\n"


def test_a_reader_that_goes_away_is_no_traceback(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("# %%\nx = 1\n" * 50)
    command = f"{sys.executable} -m tpumagic run {script} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == ""


def test_an_empty_script_has_an_empty_answer(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("# nothing\n")
    done = tpumagic_command("run", script, "--json", "-")
    assert (done.returncode, json.loads(done.stdout)["cells"]) == (0, [])


def test_the_environment_is_a_card():
    done = tpumagic_command("env")
    assert done.returncode == 0, done.stderr
    assert "Host" in done.stdout
    assert "Chips" in done.stdout


def test_the_environment_can_be_read_by_programs():
    done = tpumagic_command("env", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == 1


def test_every_target_is_listed_with_its_figures_and_their_sources():
    done = tpumagic_command("targets")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split("  ")[0] == "target"
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line}
    assert rows["v5e-1"] == "1 1 15.75 GiB 197 TFLOP/s 819 GB/s"
    assert rows["v4-8"] == "4 4 30.75 GiB 275 TFLOP/s 1,228 GB/s"
    assert rows["v3-8"] == "4 8 15.48 GiB 61.5 TFLOP/s 450 GB/s"
    assert rows["tpu7x-8"] == "4 8 94.75 GiB 1,154 TFLOP/s 3,686 GB/s"
    assert "The number in a name counts chips for v5e and v6e, TensorCores for the others." in lines
    assert "Sources" in lines
    assert max(map(len, lines)) <= 120


def test_the_targets_can_be_read_by_programs():
    answer = json.loads(tpumagic_command("targets", "--json", "-").stdout)
    assert answer["version"] == 1
    (found,) = (one for one in answer["targets"] if one["name"] == "v6e-8")
    assert (found["chip"], found["chips"], found["devices"], found["hbm_bytes"]) == (
        "v6e",
        8,
        8,
        parse_target("v6e-8").hbm_bytes,
    )
    assert (found["bf16_flops"], found["hbm_bytes_per_s"]) == (918e12, 1638e9)
    assert found["sources"]


def test_the_compilers_status_says_what_is_used_and_what_is_kept(tmp_path):
    done = tpumagic_command("compiler", "status", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("Answers kept: 0 B of at most ")
    assert not any(tmp_path.iterdir())


def test_an_installation_that_cannot_be_is_one_sentence_and_exit_status_1(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    index = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_NO_INDEX": "0",
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": os.devnull,
    }
    done = tpumagic_command("compiler", "install", env={"XDG_CACHE_HOME": str(blocked), **index})
    assert done.returncode == 1
    assert done.stderr.startswith("tpumagic compiler install: ")
    assert done.stderr.count("\n") == 1


def test_a_preview_sets_nothing_up():
    done = tpumagic_command("env", "jax", "--preview")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Nothing was changed or started."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--preview",), "tpumagic env: --preview needs a framework: tpumagic env jax --preview."),
        (("mxnet", "--cache", "x"), "tpumagic env: --cache goes with jax and keras only."),
    ],
)
def test_an_option_that_does_not_fit_is_a_usage_error(arguments, said):
    done = tpumagic_command("env", *arguments)
    assert (done.returncode, done.stderr.strip()) == (2, said)


def test_a_framework_that_cannot_be_set_up_is_exit_status_1():
    done = tpumagic_command("env", "mxnet", "--json", "-")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["version"], answer["ok"]) == (1, 1, False)
    assert answer["problem"] == "There is nothing to start: MXNet was retired in 2023 and never had a TPU backend."


def test_setting_jax_up_proves_that_it_computes(tmp_path):
    done = tpumagic_command("env", "jax", "--cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
