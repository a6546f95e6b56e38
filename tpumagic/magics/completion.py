"""Completion of what may stand behind our magics."""

from __future__ import annotations

from typing import Any

WORDS: dict[str, tuple[str, ...]] = {
    "%%tpu_profile": ("--name", "--quiet", "--widget"),
    "%tpu_profile": ("--name", "--quiet", "--widget"),
    "%tpu_auto": ("off", "on"),
    "%tpu_env": (
        "--cache", "--preview", "--undo", "jax", "keras", "mxnet", "tensorflow", "torch_tpu", "torch_xla",
    ),
    "%tpu_last": (),
}  # fmt: skip


def words(line: str) -> tuple[str, tuple[str, ...]] | None:
    """The word under way at the end of a line and what may stand there; None if it is no line of ours, or if the user
    is writing something of his own there."""
    magic, space, rest = line.partition(" ")
    if not space or magic not in WORDS:
        return None
    *before, fragment = rest.split(" ")
    before = [word for word in before if word]
    if magic == "%tpu_profile" and not fragment.startswith("-") and (fragment or before):
        return None  # the statement
    if before and before[-1] in ("--name", "--cache"):
        return None
    return fragment, tuple(word for word in WORDS[magic] if word.startswith(fragment) and word not in before)


def make_matcher() -> Any:
    """A matcher for ``Completer.custom_matchers``; None in IPython before 8.6, which has no such thing."""
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        return None

    def tpumagic_options(context: Any) -> Any:
        line: str = context.text_until_cursor
        found = words(line) if context.cursor_line == 0 or not line.startswith("%%") else None
        if found is None:
            return {"completions": []}
        fragment, candidates = found
        completions = [SimpleCompletion(text=word, type="param") for word in candidates]
        return {"completions": completions, "matched_fragment": fragment, "suppress": True}

    decorate: Any = context_matcher(identifier="tpumagic")
    return decorate(tpumagic_options)
