"""The magics in an IPython shell: loading and unloading them.

Importing this package imports no IPython: ``tpumagic.profile()`` works without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpumagic.magics.extension import Extension
    from tpumagic.magics.hooks import Hooks

_extensions: dict[Any, Extension] = {}


def load(shell: Any) -> None:
    """Register everything in this shell; does nothing where it is registered already."""
    from tpumagic.magics.extension import Extension

    if shell not in _extensions:
        extension = Extension(shell)
        extension.install()
        _extensions[shell] = extension


def unload(shell: Any) -> None:
    """Take everything out of this shell again."""
    extension = _extensions.pop(shell, None)
    if extension is not None:
        extension.remove()


def loaded(shell: Any) -> Hooks | None:
    """The hooks in this shell, None where the extension is not loaded."""
    extension = _extensions.get(shell)
    return extension.hooks if extension is not None else None
