"""What ``%tpu_env`` shows: the card of this machine, or how setting up a framework went; as text and as HTML."""

from __future__ import annotations

BACKENDS = ("jax",)


def card() -> dict[str, str]:
    """The card as a bundle of MIME types. It starts no framework and touches no chip."""
    from tpumagic.runtime import card as card_room
    from tpumagic.session import examine

    environment, backends, problems = examine()
    return {
        "text/plain": card_room.text(environment, backends, problems),
        "text/html": card_room.html(environment, backends, problems),
    }


def set_up(backend: str, cache: str | None) -> dict[str, str]:
    """Set a framework up and tell how it went."""
    from tpumagic.backends.jax import setup
    from tpumagic.runtime.environment import detect, host

    assert backend in BACKENDS
    result = setup.set_up(cache=cache, host=host(detect()))
    return {"text/plain": setup.text(result), "text/html": setup.html(result)}
