"""The machine: chips, host, versions. Every look at it takes a root folder, variables and a metadata fetcher."""

from tpumagic.runtime.environment import Environment, detect, host

__all__ = ["Environment", "detect", "host"]
