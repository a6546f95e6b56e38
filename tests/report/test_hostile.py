"""Whatever the user's names, messages and values hold: no markup, no broken JSON, no steered terminal."""

import json
import re
import unicodedata

import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_html import ALLOWED, ATTRIBUTES, DRAWN, DRAWN_ATTRIBUTES, Page

from tpumagic.events import (
    CellRecord,
    Compile,
    DeviceMemory,
    Failure,
    LiveArray,
    Program,
    ProgramMemory,
    SourceSite,
    Unavailable,
)
from tpumagic.findings import Finding
from tpumagic.plans import (
    Answer,
    Buffer,
    Communication,
    CompilerError,
    Cost,
    LineCost,
    NotCounted,
    Plan,
    Product,
    Remedy,
    SpecialCall,
    Target,
)
from tpumagic.report import Report, build
from tpumagic.report.bundle import mimebundle
from tpumagic.report.limits import LEVELS, shortened

PIECES = [
    "<script>alert(1)</script>", "</style>", "</details>", "<!--", "]]>", "'", '"', "`", "&", "&lt;", "\x1b[31m", "\x1b]0;title\x07", "\x1b", "\x9b31m",
    "\x00", "\r", "\n", "\t", "\x7f", "\ud800", "\udfff", "\u202e", "\u2066", "\u200f", "\u2028", "\ufeff", "\U0001f600", "שלום", "𝒙", "\ue000", "… 9 more",
    "… 5 more characters", "x" * 5000, "<" * 3000, '"' * 3000, "界" * 3000, " ", "…", "12.3 s", "512 MiB", "{}", "%s", "\\", "${x}",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("".join)
names = texts
floats = st.none() | st.floats() | st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e300])
ints = st.none() | st.integers() | st.sampled_from([-1, 0, 2**63, 2**64]) | st.integers(5000, 5001).map(lambda n: 10**n)
sites = st.none() | st.builds(
    SourceSite,
    line=st.integers(0, 10**9),
    cell=st.none() | st.integers(0, 9),
    file=st.none() | texts,
    function=st.none() | texts,
)
values = st.recursive(
    st.none() | st.booleans() | floats | ints | texts | st.just(object()) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
findings = st.builds(
    Finding, kind=texts, severity=st.sampled_from(["error", "warning", "info"]), title=texts, detail=texts, fix=texts, site=sites,
    related=st.lists(sites.filter(bool), max_size=3).map(tuple), program=st.none() | texts, count=ints, seconds=floats, bytes=ints,
    facts=st.dictionaries(texts, values, max_size=4),
)  # fmt: skip
stacks = st.lists(sites.filter(bool), max_size=2).map(tuple)
sizes = st.integers(-1, 2**70)
buffers = st.builds(
    Buffer, kind=st.sampled_from(["argument", "output", "temporary", "constant"]), bytes=sizes, logical_bytes=ints, dtype=st.none() | texts,
    shape=st.lists(st.integers(-1, 2**70), max_size=3).map(tuple), name=st.none() | texts, stack=stacks, operation=st.none() | texts, trips=ints,
)  # fmt: skip
plans = st.builds(
    Plan, fits=st.booleans(), needed_bytes=sizes, available_bytes=sizes, argument_bytes=ints, output_bytes=ints, temp_bytes=ints, constant_bytes=ints,
    alias_bytes=ints, holders=st.lists(buffers, max_size=8).map(tuple), padded=st.lists(buffers, max_size=2).map(tuple), peak_at=floats,
    timeline=st.lists(st.tuples(st.floats() | st.floats(0, 1), sizes), max_size=5).map(tuple),
    communications=st.lists(st.builds(Communication, kind=texts, dtype=texts, shape=st.just((3,)), bytes=sizes, trips=ints, group=ints, stack=stacks), max_size=2).map(tuple),
    calls=st.lists(st.builds(SpecialCall, kind=st.sampled_from(["custom", "host", "x64"]), name=texts, stack=stacks), max_size=2).map(tuple),
    products=st.lists(st.builds(Product, dtype=texts, precision=texts, bf16=st.booleans(), stack=stacks), max_size=2).map(tuple), seconds=floats,
)  # fmt: skip
bounds = st.sampled_from(["mxu", "hbm", "vpu", None])
costs = st.builds(
    Cost, seconds=floats, band=st.floats(), bound=bounds, mxu_seconds=floats, hbm_seconds=floats, loops_known=st.booleans(), compile_s=floats,
    lines=st.lists(st.builds(LineCost, seconds=st.floats(), share=st.floats(), band=st.floats(), stack=stacks, operation=st.none() | texts, bound=bounds), max_size=2).map(tuple),
    not_counted=st.lists(st.builds(NotCounted, operation=texts, count=st.integers(-1, 9), trips=ints, stack=stacks), max_size=2).map(tuple),
)  # fmt: skip
errors = st.builds(
    CompilerError, kind=st.sampled_from(["hbm", "vmem", "smem", "unsupported", "other"]), message=texts, needed_bytes=ints, available_bytes=ints,
    operation=st.none() | texts, stack=stacks,
)  # fmt: skip
answers = st.builds(
    Answer, target=st.builds(Target, name=texts, chip=texts, chips=sizes, devices=sizes, hbm_bytes=sizes), status=st.sampled_from(["planned", "refused", "unavailable"]),
    plan=st.none() | plans, cost=st.none() | costs, error=st.none() | errors, why=st.none() | texts, compiler=st.none() | texts, pending=st.booleans(),
    remedies=st.lists(st.builds(Remedy, name=st.just("donation"), change=texts, fits=st.none() | st.booleans(), needed_bytes=ints, why=st.none() | texts), max_size=2).map(tuple),
)  # fmt: skip
programs = st.builds(
    Program, name=names, kind=st.sampled_from(["jit", "eager", "aot"]), stack=sites.filter(bool).map(lambda site: (site,)),
    compiles=st.lists(st.builds(Compile, signature=st.none(), stack=st.just(()), trace_s=floats, lower_s=floats, compile_s=floats), max_size=2).map(tuple),
    memory=st.none() | st.builds(ProgramMemory, ints, ints, ints, ints, ints), outside=st.booleans(),
    answers=st.just(()) | st.lists(answers, max_size=2).map(tuple),
)  # fmt: skip
arrays = st.builds(
    LiveArray,
    names=st.lists(texts, max_size=2).map(tuple),
    shape=st.just((2, 3)),
    dtype=texts,
    bytes=st.integers(0, 2**70),
    sharding=st.none() | texts,
)
records = st.builds(
    CellRecord, source=texts, cell=st.none() | st.integers(0, 99), wall_s=st.floats(), ready_s=floats,
    programs=st.lists(programs, max_size=4).map(tuple),
    failure=st.none() | st.builds(Failure, type_name=texts, message=texts, stack=st.just(())),
    memory=st.builds(DeviceMemory, ints, ints, ints, ints, ints, live=st.lists(arrays, max_size=3).map(tuple)),
    unavailable=st.lists(st.builds(Unavailable, texts, texts), max_size=3).map(tuple),
)  # fmt: skip
STEERING = {"Cc", "Cs"}
DIRECTION = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029\ufeff")


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(records, st.lists(findings, max_size=4), st.none() | texts, st.dictionaries(texts, values, max_size=4))
def test_hostile_input_stays_text(record, found, name, environment):
    report = build(record, found, name=name, environment=environment)
    written = json.dumps(report.to_dict(), allow_nan=False, ensure_ascii=False)
    assert len(written.encode()) <= 60_000
    assert Report.from_dict(json.loads(written)) == report

    text = report.to_text()
    assert max(map(len, text.split("\n"))) <= 100
    for shown in (text, report.to_html(), written):
        steering = {c for c in shown if unicodedata.category(c) in STEERING or c in DIRECTION}
        assert steering <= {"\n"}

    page = Page(report.to_html())
    assert set(page.tags) <= ALLOWED | DRAWN
    assert {attribute for attribute, _ in page.attributes} <= ATTRIBUTES | DRAWN_ATTRIBUTES
    assert all(re.fullmatch(r"[a-z0-9 -]*", value or "true") for name, value in page.attributes if name in ATTRIBUTES)
    assert all(re.fullmatch(r"[a-zA-Z0-9 .%]*", value) for name, value in page.attributes if name in DRAWN_ATTRIBUTES)

    data, _ = mimebundle(report)
    assert len(json.dumps(data, allow_nan=False, ensure_ascii=False).encode()) <= 60_000


@settings(max_examples=60, deadline=None)
@given(texts, st.sampled_from(LEVELS))
def test_cleaning_twice_is_cleaning_once(text, limits):
    report = Report(
        name="n", findings=(Finding("a.b", "warning", text, text, text, facts={"a": text, "b": [text] * 50}),)
    )
    once = shortened(report, limits)
    assert shortened(once, limits) == once


def test_the_worst_of_everything_still_fits():
    worst = "\x1b\u202e<\"'&界" * 2_000
    facts = {worst + str(n): [worst] * 100 for n in range(50)}
    found = tuple(
        Finding(
            worst,
            "error",
            worst,
            worst,
            worst,
            examples.site(1, worst),
            (examples.site(2, worst),) * 300,
            worst,
            facts=facts,
        )
        for _ in range(50)
    )
    record = CellRecord(
        source=worst,
        wall_s=1.0,
        failure=Failure(worst, worst, ()),
        programs=tuple(examples.program(worst + str(n)) for n in range(200)),
        memory=DeviceMemory(live=tuple(LiveArray((worst,), (1,), worst, n, worst) for n in range(200))),
        unavailable=(Unavailable(worst, worst),) * 100,
    )
    deep: object = worst
    for n in range(30):
        deep = {worst + str(m): deep for m in range(3)} if n < 5 else [deep] * 3
    report = build(record, found, name=worst, environment={worst: deep, "deep": deep})
    data, _ = mimebundle(report)
    assert report.size_bytes <= 60_000
    assert len(report.to_html().encode()) <= 60_000
    assert len(json.dumps(data, ensure_ascii=False).encode()) <= 60_000
