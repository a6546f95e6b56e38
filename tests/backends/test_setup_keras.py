"""Keras set up in processes of its own: in time, too late, and after an import that failed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")
if importlib.util.find_spec("keras") is None:  # importing it here would choose a backend
    pytest.skip("needs keras", allow_module_level=True)

RUN = """
import json, os, sys
from tpumagic.backends import set_up as room
{before}
result = room.start("keras", {cache!r}, globals())
answer = {{**result.to_dict(), "text": room.text(result)}}
{after}
print(json.dumps(answer))
"""


@pytest.fixture
def in_process(tmp_path):
    def run(before="", after="", cache=None, **environ):
        code = RUN.format(before=before, after=after, cache=cache)
        around = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "KERAS_HOME": str(tmp_path)} | environ
        around = {name: value for name, value in around.items() if value is not None}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=around)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_keras_is_started_on_jax_proven_and_timed(in_process, tmp_path):
    answer = in_process(KERAS_BACKEND="jax", cache=str(tmp_path / "cache"))
    assert answer["ok"], answer
    assert (answer["backend"]["framework"], answer["backend"]["platform"]) == ("keras", "cpu")
    assert answer["text"].splitlines()[0] == (
        f"Keras {answer['backend']['version']} with {answer['under']} runs on cpu: 1 device."
    )
    assert answer["import_s"] > 0
    assert answer["start_s"] > 0
    assert answer["cache"] == str(tmp_path / "cache")


def test_a_second_set_up_finds_all_running(in_process):
    answer = in_process('room.start("keras", None, {})', KERAS_BACKEND="jax")
    assert (answer["import_s"], answer["start_s"], answer["repaired"]) == (None, None, None)


def test_the_names_of_the_users_layers_do_not_count_on_from_ours(in_process):
    after = 'import keras; answer["name"] = keras.layers.Dense(1).name'
    assert in_process(after=after, KERAS_BACKEND="jax")["name"] == "dense"


def test_what_a_failed_import_left_is_taken_away(in_process):
    before = (
        "try:\n    import keras\nexcept ImportError:\n    pass\nassert 'keras' not in sys.modules\n"
        "assert any(name.startswith('keras.') for name in sys.modules)\nos.environ['KERAS_BACKEND'] = 'jax'"
    )
    hide = "sys.modules['tensorflow'] = None\n"
    answer = in_process(hide + before, KERAS_BACKEND="tensorflow")
    assert answer["ok"], answer
    assert answer["repaired"] == "An import of Keras had failed half-way; what it had left behind is gone."


LATE = "import keras\nfrom keras import layers\nos.environ['KERAS_BACKEND'] = 'jax'\n"


def test_a_keras_on_another_backend_is_imported_anew_with_the_notebooks_modules(in_process):
    after = (
        "answer['backends'] = [keras.backend.backend(), layers.Dense is sys.modules['keras.layers'].Dense]\n"
        "answer['computes'] = float(layers.Dense(1, kernel_initializer='ones')(keras.ops.ones((1, 3))).sum())"
    )
    answer = in_process(LATE, after, KERAS_BACKEND="numpy")
    assert answer["repaired"] == "Keras ran on numpy and has been imported anew on jax."
    assert (answer["backends"], answer["computes"]) == (["jax", True], 3.0)


MADE = {
    "model": "model = layers.Dense(3)",
    "stack": "stack = [layers.Dense(3)]",
    "by_name": "by_name = {'a': layers.Dense(3)}",
    "Mine": "class Mine(keras.Model):\n    pass",
    "Dense": "from keras.layers import Dense",
    "relu": "relu = keras.ops.relu",
}


def test_what_was_made_of_the_old_keras_is_never_mixed_with_a_new_one(in_process):
    before = LATE + (
        f"problems = []\nfor line in {list(MADE.values())!r}:\n"
        "    held = {'keras': keras, 'layers': layers, '__name__': '__main__'}\n"
        "    exec(line, held)\n"
        "    problems.append(room.start('keras', None, held).problem)\n"
        "del held\n"
    )
    after = "answer['problems'] = problems"
    answer = in_process(before, after, KERAS_BACKEND="numpy")
    assert answer["problems"] == [
        f"Keras was imported on numpy and cannot be changed to jax, since {name} belongs to it. Restart the kernel and run "
        "%tpu_env keras before Keras is imported."
        for name in MADE
    ]
    assert answer["repaired"] == "Keras ran on numpy and has been imported anew on jax.", (
        "nothing was in the way at last"
    )


def test_a_broken_keras_is_one_sentence(in_process, tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/__init__.py").write_text("raise ImportError('no h5py')")
    answer = in_process(f"sys.path.insert(0, {str(tmp_path)!r})", KERAS_BACKEND="jax")
    assert answer["problem"] == "Keras could not be imported (ImportError: no h5py)."
