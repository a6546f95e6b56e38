"""tpumagic shows, under a notebook cell, what that cell does on a TPU."""

__version__ = "0.1.0"
