"""PyTorch/XLA set up in a process of its own, on its CPU backend."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch_xla", exc_type=ImportError)

RUN = """
import json
from tpumagic.backends import set_up as room
from tpumagic.backends.torch_xla import setup
seen = [setup.describe() is None]
import torch_xla
seen.append(setup.describe().platform)
first, second = room.start("torch_xla"), room.start("torch_xla")
seen.append(setup.describe().platform)
print(json.dumps({"seen": seen, "first": first.to_dict(), "second": second.to_dict(), "text": room.text(first)}))
"""


def test_pytorch_xla_is_started_proven_and_timed():
    environ = os.environ | {"PJRT_DEVICE": "CPU"}
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["seen"] == [True, None, "cpu"], "an import starts nothing"
    first, second = answer["first"], answer["second"]
    assert first["ok"], first
    assert answer["text"].splitlines()[0] == f"PyTorch/XLA {first['backend']['version']} runs on cpu: 1 device."
    assert first["start_s"] > 0
    assert second["start_s"] is None
    assert second["import_s"] is None
