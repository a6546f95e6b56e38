"""Names of the frameworks that tpumagic can set up, as users type them. Imports nothing: the magics need them at once."""

FRAMEWORKS: tuple[str, ...] = ("jax", "torch_xla", "torch_tpu", "keras", "tensorflow", "mxnet")
"""What ``%tpu_env`` can be asked to set up."""

ON_JAX: tuple[str, ...] = ("jax", "keras")
"""Those for which JAX computes, or can: its compilation cache and its CPU devices are theirs."""
