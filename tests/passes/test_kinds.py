"""Every kind that is told stands in the one list of kinds."""

import ast
import re
from pathlib import Path

from tpumagic.findings import KINDS

PACKAGE = Path(__file__).parent.parent.parent / "tpumagic"
KIND = re.compile(rf"(?:{'|'.join(KINDS)})\.[a-z][a-z0-9_]*")


def told(source: str) -> set[str]:
    """Texts in a module that look like kinds."""
    texts = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and KIND.fullmatch(text)}


def test_passes_and_problems_tell_known_kinds_only():
    known = {f"{family}.{name}" for family, names in KINDS.items() for name in names}
    found = {
        kind
        for room in ("passes", "runtime")
        for path in (PACKAGE / room).rglob("*.py")
        for kind in told(path.read_text())
    }
    assert "host.sync" in found
    assert found - known == set()


def test_an_unknown_kind_would_be_seen():
    assert told('kind = "host.syncs"') == {"host.syncs"}
