"""tpumagic shows, under a notebook cell, what that cell does on a TPU.

In a notebook: ``%load_ext tpumagic``, then ``%%tpu_profile`` on the first line of a cell. In a program:
``with tpumagic.profile(): …``. Whether a call fits on a TPU that is not there: ``tpumagic.dry_run(step, x, target=…)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpumagic.magics.context import dry_run as dry_run
    from tpumagic.magics.context import last_report as last_report
    from tpumagic.magics.context import profile as profile
    from tpumagic.report.widget import ReportWidget as ReportWidget
    from tpumagic.runtime.environment import detect as environment

__version__ = "0.1.0"
__all__ = ["ReportWidget", "dry_run", "environment", "last_report", "profile"]

# Where the public names live; each is imported when it is first used, so that `import tpumagic` stays light.
_HOMES = {
    "ReportWidget": ("tpumagic.report.widget", "ReportWidget"),
    "dry_run": ("tpumagic.magics.context", "dry_run"),
    "environment": ("tpumagic.runtime.environment", "detect"),
    "last_report": ("tpumagic.magics.context", "last_report"),
    "profile": ("tpumagic.magics.context", "profile"),
}


def load_ipython_extension(shell: Any) -> None:
    """Called by ``%load_ext tpumagic``."""
    from tpumagic.magics import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Called by ``%unload_ext tpumagic``."""
    from tpumagic.magics import unload

    unload(shell)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
