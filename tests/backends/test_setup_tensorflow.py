"""TensorFlow set up in a process of its own, on the CPU."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow", exc_type=ImportError)

RUN = """
import json
from tpumagic.backends import set_up as room
result = room.start("tensorflow", tpu={tpu})
print(json.dumps({{**result.to_dict(), "text": room.text(result)}}))
"""


def in_process(tpu):
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", RUN.format(tpu=tpu)], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_tensorflow_is_started_proven_and_timed():
    answer = in_process(tpu=False)
    assert answer["ok"], answer
    assert answer["text"].splitlines()[0] == f"TensorFlow {answer['backend']['version']} runs on cpu: 1 device."


def test_a_tpu_that_is_not_there_is_a_problem_and_no_silent_cpu():
    answer = in_process(tpu=True)
    if answer["ok"]:
        assert answer["backend"]["platform"] == "tpu"
    else:
        assert answer["problem"].startswith("TensorFlow did not start")
        assert "\n" not in answer["problem"]
