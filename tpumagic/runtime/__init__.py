"""The machine: chips, host, versions. Every look at it takes a root folder, variables and a metadata fetcher."""

from tpumagic.runtime.environment import Environment, detect, host, may_be_tpu_host

__all__ = ["Environment", "detect", "host", "may_be_tpu_host"]
