"""Calls of jitted functions made by hand, for tests of what is said about their compilations."""

from tpumagic.events import (
    CellRecord,
    Compile,
    FunctionId,
    Leaf,
    Program,
    Signature,
    SourceSite,
    StaticValue,
    Structure,
)
from tpumagic.findings import Finding
from tpumagic.passes import recompilation

LEAF = Structure("leaf")
LINE = SourceSite(8, cell=5)
FIRST = SourceSite(6, cell=5)
STEP = FunctionId("step", "step:1", 10, SourceSite(2, cell=5, function="step"))
X = Leaf("x", (8,), "float32", devices=(0,), committed=False)


def call(*leaves: Leaf, function: FunctionId = STEP, site: SourceSite = LINE, **fields) -> Signature:
    names = tuple(leaf.path for leaf in leaves)
    base = {"structure": tuple((name, LEAF) for name in names), "positional": names}
    return Signature(function=function, leaves=leaves, site=site, **{**base, **fields})


def compiled(*signatures: Signature, kind: str = "jit", known: int = 1, source: str = "", **fields) -> CellRecord:
    """A record in which all signatures but the first ``known`` were compiled, in this order."""
    compiles = [
        Compile(one, (one.site,), 0.1, 0.05, 0.1, earlier=signatures[:i], **fields)
        for i, one in enumerate(signatures)
        if i >= known
    ]
    programs = tuple(
        Program(one.signature.function.name, kind, one.stack, signature=one.signature, compiles=(one,))
        for one in compiles
    )
    return CellRecord(source=source, cell=5, programs=programs, wall_s=10.0)


def only(record: CellRecord) -> Finding:
    found = list(recompilation.find(record))
    assert len(found) == 1, found
    return found[0]


def said(finding: Finding) -> tuple[str, str, str, str]:
    return finding.severity, finding.title, finding.detail, finding.fix


STATIC = (("static_argnames", "('n',)"),)


def text(value: str, key: str | None = None, type_name: str = "int", name: str = "n", **fields) -> StaticValue:
    return StaticValue(name, value, type_name, key or value, **fields)
