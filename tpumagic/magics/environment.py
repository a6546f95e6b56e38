"""What ``%tpu_env`` and ``tpumagic env`` show: the card of this machine, or how setting up a framework went.

Both come as a bundle: text, HTML, and the same as JSON.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

BACKENDS = ("jax",)


def card() -> dict[str, Any]:
    """The card. It starts no framework and touches no chip."""
    from tpumagic import runtime
    from tpumagic.backends.jax import setup
    from tpumagic import session
    from tpumagic.runtime import card as card_room
    from tpumagic.runtime import problems as problems_room
    from tpumagic.runtime.problem import Problem

    machine, backends, standing = session.examine()
    told = [Problem(found.title, found.fix, found.kind, found.severity, found.detail) for found in standing]
    problems = problems_room.merged(problems_room.find(machine), told)
    return {
        "text/plain": card_room.text(machine, backends, problems),
        "text/html": card_room.html(machine, backends, problems),
        "application/json": {
            **machine.to_dict(),
            "frameworks": [{**asdict(one), "settings": dict(one.settings)} for one in backends],
            "problems": [asdict(problem) for problem in problems],
        },
    }


def set_up(backend: str, cache: str | None) -> dict[str, Any]:
    """Set a framework up (one of BACKENDS) and tell how it went. Never raises."""
    from tpumagic import runtime
    from tpumagic.backends.jax import setup

    assert backend in BACKENDS
    result = setup.set_up(cache=cache, host=runtime.host(runtime.detect()))
    return {"text/plain": setup.text(result), "text/html": setup.html(result), "application/json": result.to_dict()}
