"""Completion of what may stand behind our magics."""

from __future__ import annotations

from typing import Any

from tpumagic.magics.options import OPTIONS, WITH_CODE, WORDS


def words(line: str) -> tuple[str, tuple[str, ...]] | None:
    """The word under way at the end of a line and what may stand there; None if it is no line of ours, or if the user
    is writing something of his own there."""
    magic, space, rest = line.partition(" ")
    if not space or magic not in OPTIONS:
        return None
    *before, fragment = rest.split(" ")
    before = [word for word in before if word]
    flag, equals, value = fragment.partition("=")
    if not equals:
        flag, value = before[-1] if before else "", fragment
    named = next((option for option in OPTIONS[magic] if option.flag == flag and option.metavar), None)
    if named is not None:
        values = tuple(name for name in named.values() if name.startswith(value))
        return (value, values) if values else None
    code_began = _plain_words(magic, before) or (not fragment.startswith("-") and (fragment or before))
    if magic in WITH_CODE and code_began:
        return None
    candidates = sorted((*(option.flag for option in OPTIONS[magic]), *WORDS.get(magic, ())))
    return fragment, tuple(word for word in candidates if word.startswith(fragment) and word not in before)


def _plain_words(magic: str, before: list[str]) -> bool:
    """Whether there is a word already that is neither an option nor the value of one."""
    valued = {option.flag for option in OPTIONS[magic] if option.metavar}
    return any(
        not word.startswith("-") and (number == 0 or before[number - 1] not in valued)
        for number, word in enumerate(before)
    )


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
