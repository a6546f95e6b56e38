"""Old notebooks that fail at a name which its framework has dropped: messages as JAX 0.7.2 and 0.10.2, PyTorch/XLA 2.9
and TensorFlow 2.20 word them."""

import pytest

from tpumagic.events import CellRecord, Failure, SourceSite
from tpumagic.passes import dead_apis
from tpumagic.passes import environment as environment_pass


def failing(source, message, type_name="AttributeError", line=1):
    failure = Failure(type_name=type_name, message=message, stack=(SourceSite(line=line, cell=3),))
    return CellRecord(source=source, cell=3, failure=failure)


@pytest.mark.parametrize(
    ("line", "message", "type_name", "name", "fix"),
    [
        (
            "y = jax.tree_map(f, x)",
            "module 'jax' has no attribute 'tree_map'",
            "AttributeError",
            "jax.tree_map",
            "Write jax.tree.map.",
        ),
        (
            "y = jax.tree_map(f, x)",
            "jax.tree_map was removed in JAX v0.6.0: use jax.tree.map (jax v0.4.25 or newer).",
            "AttributeError",
            "jax.tree_map",
            "Write jax.tree.map.",
        ),
        (
            "x = jax.ops.index_update(x, jax.ops.index[0], 1)",
            "module 'jax.ops' has no attribute 'index_update'",
            "AttributeError",
            "jax.ops.index_update",
            "Write x.at[i].set(value).",
        ),
        (
            "from jax.experimental.maps import xmap, Mesh",
            "No module named 'jax.experimental.maps'",
            "ModuleNotFoundError",
            "jax.experimental.maps",
            "Write jax.sharding.Mesh for maps.Mesh, and jax.shard_map or jax.vmap for xmap.",
        ),
        (
            "from jax.experimental import host_callback as hcb",
            "cannot import name 'host_callback' from 'jax.experimental' (/site-packages/jax/experimental/__init__.py)",
            "ImportError",
            "jax.experimental.host_callback",
            (
                "Write jax.debug.print or jax.debug.callback to look at values, jax.pure_callback or "
                "jax.experimental.io_callback to call Python."
            ),
        ),
        (
            "shards = jax.device_put_sharded(parts, jax.devices())",
            "jax.device_put_sharded is deprecated; use jax.device_put instead.",
            "AttributeError",
            "jax.device_put_sharded",
            "Write jax.device_put(numpy.stack(shards), jax.sharding.NamedSharding(mesh, jax.P('axis'))).",
        ),
        (
            "n = xm.xrt_world_size()",
            "module 'torch_xla.core.xla_model' has no attribute 'xrt_world_size'",
            "AttributeError",
            "torch_xla.core.xla_model.xrt_world_size",
            "Write torch_xla.runtime.world_size().",
        ),
        (
            "import torch_xla_py.xla_model as xm",
            "No module named 'torch_xla_py'",
            "ModuleNotFoundError",
            "torch_xla_py",
            "Write torch_xla.core.xla_model.",
        ),
        (
            "model = tf.contrib.tpu.keras_to_tpu_model(model)",
            "module 'tensorflow' has no attribute 'contrib'",
            "AttributeError",
            "tensorflow.contrib",
            dead_apis.REPLACEMENTS["tensorflow.contrib"],
        ),
    ],
)
def test_a_dropped_name_is_told_with_its_line_and_what_replaces_it(line, message, type_name, name, fix):
    (finding,) = environment_pass.find(failing(f"x = 1\n{line}", message, type_name, line=2))
    assert (finding.kind, finding.severity, finding.fix) == ("env.old_snippet", "error", fix)
    owner = {"jax": "JAX", "tens": "TensorFlow", "torc": "PyTorch/XLA"}[name.partition(".")[0][:4]]
    assert finding.title == f"{name} is from old notebooks: {owner} has dropped it."
    assert finding.site == SourceSite(line=2, cell=3)
    assert finding.facts["name"] == name


@pytest.mark.parametrize(
    ("source", "message", "type_name"),
    [
        ("y = jax.tree_mapp(f, x)", "module 'jax' has no attribute 'tree_mapp'", "AttributeError"),
        ("state = old_library.init(x)", "module 'jax' has no attribute 'tree_map'", "AttributeError"),
        ("import jaxopt", "No module named 'jaxopt'", "ModuleNotFoundError"),
        ("import mine.maps", "No module named 'mine.maps'", "ModuleNotFoundError"),
        ("y = jax.tree_map(f, x)", "module 'jax' has no attribute 'tree_map'", "ValueError"),
        ("model.tree_map(1)", "'Model' object has no attribute 'tree_map'", "AttributeError"),
    ],
)
def test_other_failures_are_not_called_old(source, message, type_name):
    assert list(environment_pass.find(failing(source, message, type_name))) == []


def test_a_cell_without_a_number_is_looked_into_as_well():
    failure = Failure("AttributeError", "module 'jax' has no attribute 'tree_map'", (SourceSite(line=1),))
    (finding,) = environment_pass.find(CellRecord(source="jax.tree_map(f, x)", failure=failure))
    assert finding.site == SourceSite(line=1)


def test_a_name_in_the_text_that_does_not_fail_is_not_told():
    assert list(environment_pass.find(CellRecord(source="if hasattr(jax, 'tree_map'):\n    jax.tree_map(f, x)"))) == []


def test_no_name_in_the_table_works_with_the_jax_that_is_installed():
    jax = pytest.importorskip("jax")
    if tuple(map(int, jax.__version__.split(".")[:2])) < (0, 10):
        pytest.skip("some of them were there before JAX 0.10")
    for name in dead_apis.REPLACEMENTS:
        if name.startswith("jax."):
            with pytest.raises((AttributeError, ImportError)):
                _use(name)


def test_every_dropped_name_is_recognised_from_the_exception_that_it_really_raises():
    pytest.importorskip("jax")
    for name in dead_apis.REPLACEMENTS:
        if not name.startswith("jax."):
            continue
        error = _error(name)
        found = None if error is None else dead_apis.find(type(error).__name__, str(error))
        assert error is None or (found is not None and found.name == name), (name, error)


def _error(name):
    """The exception at the use of a name; None where this version still has it."""
    try:
        _use(name)
    except (AttributeError, ImportError) as error:
        return error


def _use(name):
    import importlib
    import warnings

    module, _, attribute = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            owner = getattr(importlib.import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
        return getattr(owner, attribute)
