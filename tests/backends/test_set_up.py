"""How a set-up is told, whichever framework it was."""

import pytest

from tpumagic.backends import set_up as room
from tpumagic.backends.set_up import SetUp
from tpumagic.events import Backend


def test_a_set_up_in_sentences():
    result = SetUp(
        warning="Not on a TPU, but on cpu: this machine has no TPU chip.",
        backend=Backend("keras", "3.15.1", "cpu", 1),
        import_s=2.0,
        start_s=1.5,
        compile_s=0.25,
        run_s=0.001,
        under="JAX 0.10.2",
        cache="/c",
        cache_stored=True,
    )
    assert room.text(result).splitlines() == [
        "Not on a TPU, but on cpu: this machine has no TPU chip.",
        "Keras 3.15.1 with JAX 0.10.2 runs on cpu: 1 device.",
        "It imported in 2 s and started in 1.5 s; a matrix multiplication compiled in 250 ms and ran in 1 ms.",
        "Compilation cache in /c: small programs are kept too.",
    ]


def test_a_proof_that_comes_out_wrong_is_no_success():
    assert room.wrong_product("JAX", 256.0) is None
    assert room.wrong_product("JAX", 255.0) == (
        "JAX runs but computes wrongly: a mean that must be 256 came out as 255.0."
    )


@pytest.mark.parametrize("framework", ["torch_tpu", "torch_xla", "tensorflow", "keras"])
def test_a_framework_that_cannot_be_imported_is_one_sentence(framework, monkeypatch):
    import sys

    module = {"torch_tpu": "torch", "torch_xla": "torch"}.get(framework, framework)
    monkeypatch.setitem(sys.modules, module, None)
    label = {"torch_tpu": "TorchTPU", "torch_xla": "PyTorch/XLA", "tensorflow": "TensorFlow", "keras": "Keras"}[
        framework
    ]
    problem = room.start(framework).problem
    assert problem is not None
    assert problem.startswith(f"{label} could not be imported (ModuleNotFoundError: ")


def test_html_escapes_everything():
    assert room.html_of(("<script>",)) == "<div><p>&lt;script&gt;</p></div>"
