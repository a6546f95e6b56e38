"""Everything that one shell has of tpumagic: magics, hooks and completion, put in and taken out together."""

from __future__ import annotations

from typing import Any

from tpumagic.magics.commands import TpuMagics, parse_options
from tpumagic.magics.completion import make_matcher
from tpumagic.magics.hooks import Hooks


class Extension:
    """The extension in one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.hooks = Hooks(shell, parse_options)
        self._magics: TpuMagics | None = None
        self._matcher = make_matcher()

    def install(self) -> None:
        """Register everything."""
        shell = self._shell
        self._magics = TpuMagics(shell)
        self._magics.hooks = self.hooks
        shell.register_magics(self._magics)
        self.hooks.install()
        matchers = _matchers(shell)
        if matchers is not None and self._matcher is not None:
            matchers.append(self._matcher)

    def remove(self) -> None:
        """Unregister everything. IPython has no call for that, so its tables are cleaned by hand."""
        shell = self._shell
        self.hooks.remove()
        manager = shell.magics_manager
        for table in manager.magics.values():
            for name in [name for name, magic in table.items() if getattr(magic, "__self__", None) is self._magics]:
                del table[name]
        if manager.registry.get(TpuMagics.__name__) is self._magics:
            del manager.registry[TpuMagics.__name__]
        shell.configurables[:] = [one for one in shell.configurables if one is not self._magics]
        matchers = _matchers(shell)
        if matchers is not None and self._matcher in matchers:
            matchers.remove(self._matcher)


def _matchers(shell: Any) -> list[Any] | None:
    """The list of matchers of other extensions; None before IPython 8.6."""
    return getattr(getattr(shell, "Completer", None), "custom_matchers", None)
