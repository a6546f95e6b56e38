"""Names that frameworks have dropped, as they stand in old notebooks, and what stands in their place today.

Each was tried: the names are gone from JAX 0.10, PyTorch/XLA 2.9 or TensorFlow 2.20. What is only deprecated is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class OldWay:
    """Something that once was the way to do it. name: as the code writes it; gone: why it works no more; instead: what
    to write."""

    name: str
    gone: str
    instead: str


REPLACEMENTS: dict[str, str] = {
    "jax.abstract_arrays": "jax.core.ShapedArray stands where jax.abstract_arrays.ShapedArray stood.",
    "jax.api": "Everything of jax.api is in jax itself: `from jax import jit, grad, vmap`.",
    "jax.clear_backends": "Write jax.extend.backend.clear_backends(), or jax.clear_caches() to compile anew.",
    "jax.device_put_replicated": "Write jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.P())).",
    "jax.device_put_sharded": "Write jax.device_put(numpy.stack(shards), jax.sharding.NamedSharding(mesh, jax.P('axis'))).",
    "jax.experimental.PartitionSpec": "Write jax.sharding.PartitionSpec.",
    "jax.experimental.compilation_cache.compilation_cache.initialize_cache": "Write "
    "jax.config.update('jax_compilation_cache_dir', folder), or run %tpu_env jax --cache DIR.",
    "jax.experimental.global_device_array": "Arrays over several devices are plain jax.Array: "
    "jax.make_array_from_callback(shape, sharding, callback).",
    "jax.experimental.host_callback": "Write jax.debug.print or jax.debug.callback to look at values, jax.pure_callback or "
    "jax.experimental.io_callback to call Python.",
    "jax.experimental.loops": "Write jax.lax.fori_loop, jax.lax.scan or jax.lax.cond.",
    "jax.experimental.maps": "Write jax.sharding.Mesh for maps.Mesh, and jax.shard_map or jax.vmap for xmap.",
    "jax.experimental.optimizers": "It is jax.example_libraries.optimizers now; optax is what people use.",
    "jax.experimental.pjit.PartitionSpec": "Write jax.sharding.PartitionSpec.",
    "jax.experimental.stax": "It is jax.example_libraries.stax now; flax and equinox are what people use.",
    "jax.interpreters.sharded_jit": "Write jax.jit with in_shardings and out_shardings.",
    "jax.interpreters.xla.DeviceArray": "Every array is a jax.Array now: isinstance(x, jax.Array).",
    "jax.linear_util": "It is jax.extend.linear_util now.",
    "jax.nn.normalize": "Write jax.nn.standardize.",
    "jax.numpy.DeviceArray": "Every array is a jax.Array now: isinstance(x, jax.Array).",
    "jax.numpy.in1d": "Write jax.numpy.isin.",
    "jax.numpy.round_": "Write jax.numpy.round.",
    "jax.numpy.trapz": "Write jax.numpy.trapezoid.",
    "jax.ops.index": "Write x.at[i].set(value): jax.Array has `at` for every kind of index.",
    "jax.ops.index_add": "Write x.at[i].add(value).",
    "jax.ops.index_max": "Write x.at[i].max(value).",
    "jax.ops.index_min": "Write x.at[i].min(value).",
    "jax.ops.index_mul": "Write x.at[i].multiply(value).",
    "jax.ops.index_update": "Write x.at[i].set(value).",
    "jax.partial": "Write functools.partial.",
    "jax.random.KeyArray": "Write jax.Array as its type.",
    "jax.random.shuffle": "Write jax.random.permutation.",
    "jax.sharding.MeshPspecSharding": "Write jax.sharding.NamedSharding.",
    "jax.sharding.OpShardingSharding": "Write jax.sharding.NamedSharding.",
    "jax.tree_flatten": "Write jax.tree.flatten.",
    "jax.tree_leaves": "Write jax.tree.leaves.",
    "jax.tree_map": "Write jax.tree.map.",
    "jax.tree_multimap": "Write jax.tree.map, which takes several trees.",
    "jax.tree_structure": "Write jax.tree.structure.",
    "jax.tree_transpose": "Write jax.tree.transpose.",
    "jax.tree_unflatten": "Write jax.tree.unflatten.",
    "jax.tree_util.tree_multimap": "Write jax.tree.map, which takes several trees.",
    "tensorflow.contrib": "For TPUs write tf.distribute.TPUStrategy after tf.tpu.experimental.initialize_tpu_system; the "
    "rest of contrib has gone to packages of its own.",
    "torch_xla.amp.GradScaler": "Leave it out: on a TPU autocast computes in bfloat16, which needs no scaling.",
    "torch_xla.core.xla_model.get_ordinal": "Write torch_xla.runtime.global_ordinal().",
    "torch_xla.core.xla_model.xrt_world_size": "Write torch_xla.runtime.world_size().",
    "torch_xla.distributed.xla_dist": "Run the same script on every worker (gcloud … ssh --worker=all); they find each other.",
    "torch_xla.distributed.xrt_init": "Write torch.distributed.init_process_group('xla', init_method='xla://').",
    "torch_xla.experimental.pjrt": "It is torch_xla.runtime now.",
    "torch_xla.experimental.xla_sharding": "It is torch_xla.distributed.spmd now.",
    "torch_xla.runtime.using_pjrt": "Leave the question out: PJRT is the only runtime.",
    "torch_xla_py": "Write torch_xla.core.xla_model.",
}
"""Full name -> what to write instead."""

_OWNERS = {"jax": "JAX", "tensorflow": "TensorFlow", "torch_xla": "PyTorch/XLA", "torch_xla_py": "PyTorch/XLA"}

_MESSAGES = (
    re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"),
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"),
    re.compile(r"No module named '(?P<module>[\w.]+)'"),
    re.compile(r"(?P<module>jax\.[\w.]+\w) (?:is deprecated|was deprecated|was removed|has been removed|is removed)"),
)


def find(type_name: str, message: str) -> OldWay | None:
    """The dropped name that an exception is about, None if it is about none that is known."""
    if type_name not in ("AttributeError", "ImportError", "ModuleNotFoundError"):
        return None
    for pattern in _MESSAGES:
        match = pattern.search(message)
        if match is None:
            continue
        name = ".".join(part for part in (match["module"], match.groupdict().get("name")) if part)
        if name not in REPLACEMENTS and "No module" in match[0]:
            name = next((known for known in REPLACEMENTS if name.startswith(f"{known}.")), name)
        if name in REPLACEMENTS:
            return OldWay(name, f"{_OWNERS[name.partition('.')[0]]} has dropped it", REPLACEMENTS[name])
    return None
