import dataclasses
import json
import typing
from pathlib import Path

import examples
import jsonschema
import pytest
import target_examples

import tpumagic.report
from tpumagic.events import CellRecord, SourceSite
from tpumagic.findings import Finding
from tpumagic.report import Report, build
from tpumagic.report.limits import LEVELS, fitted, shortened

SCHEMA = json.loads((Path(tpumagic.report.__file__).parent / "schema.json").read_text(encoding="utf-8"))


REPORTS = {
    "rich": examples.rich,
    "uncounted": lambda: examples.rich(cell=None),
    "clean": examples.clean,
    "failed": examples.failed,
    "empty": lambda: build(CellRecord(), (), environment={}),
    "sampled": examples.sampled,
    "sampled for an hour": lambda: examples.sampled(devices=8, looks=37),
    "huge": lambda: build(examples.huge_record(), examples.huge_findings(), environment={}),
    **target_examples.REPORTS,
}


@pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)
def test_a_report_follows_its_schema_and_comes_back_from_json_unchanged(make):
    report = make()
    data = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    jsonschema.Draft202012Validator(SCHEMA).validate(data)
    assert Report.from_dict(data) == report


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_report_that_breaks_the_schema_is_seen():
    data = examples.rich().to_dict()
    data["timing"]["compile_s"] = "fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(data)


def described(schema, path=""):
    """Every field of the schema with where it stands."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from described(field, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from described(schema["items"], f"{path}[]")
    for name, definition in schema.get("$defs", {}).items():
        yield from described(definition, name)


def test_every_field_of_the_schema_says_what_it_is_in_what_unit_and_what_null_means():
    for path, field in described(SCHEMA):
        assert field.get("description"), path
        types = field.get("type", [])
        types = {types} if isinstance(types, str) else set(types)
        if types & {"number", "integer"}:
            assert field.get("unit") in ("second", "byte", "count", "share", "factor"), path
        nullable = "null" in types or {"type": "null"} in field.get("anyOf", [])
        assert nullable == ("null" in field), path


def fields_of(kind):
    return {field.name for field in dataclasses.fields(kind)}


def test_schema_and_dataclasses_have_the_same_fields():
    from tpumagic.report import model, target_model

    definitions = SCHEMA["$defs"]
    pairs = [
        (Report, SCHEMA), (model.Cell, SCHEMA["properties"]["cell"]), (model.Timing, SCHEMA["properties"]["timing"]),
        (model.Memory, SCHEMA["properties"]["memory"]), (model.DeviceSamples, definitions["deviceSamples"]), (model.Omitted, SCHEMA["properties"]["omitted"]),
        (model.ReportedProgram, definitions["program"]), (model.ReportedArray, definitions["array"]),
        (Finding, definitions["finding"]), (SourceSite, definitions["site"]), (model.ProgramMemory, definitions["programMemory"]),
        (target_model.ReportedTarget, definitions["target"]), (target_model.ReportedBuffer, definitions["buffer"]),
        (target_model.ReportedCollective, definitions["collective"]), (target_model.ReportedCall, definitions["call"]),
        (target_model.ReportedProduct, definitions["product"]), (target_model.ReportedCost, definitions["cost"]),
        (target_model.ReportedLineCost, definitions["lineCost"]), (target_model.ReportedNotCounted, definitions["notCounted"]),
        (target_model.ReportedError, definitions["compilerError"]), (target_model.ReportedRemedy, definitions["remedy"]),
        (target_model.OmittedOfTarget, definitions["target"]["properties"]["omitted"]),
    ]  # fmt: skip
    for kind, schema in pairs:
        assert fields_of(kind) == set(schema["properties"]), kind.__name__
        hints = typing.get_type_hints(kind)
        for name, field in schema["properties"].items():
            nullable = "null" in field
            assert nullable == (type(None) in typing.get_args(hints[name])), f"{kind.__name__}.{name}"


def test_the_report_holds_what_was_seen():
    report = examples.rich()
    assert (report.name, report.cell.count, len(report.cell.source_sha256)) == ("first epoch", 5, 64)
    assert report.timing.compiles == 9
    assert report.timing.build_s == pytest.approx(1.9 + 1.4 + 1.3 + 0.41 + 0.2 + 4 * 0.03)
    assert report.timing.run_s == pytest.approx(6.9 - report.timing.build_s)
    assert [program.name for program in report.programs][:4] == ["train_step", "train_step", "train_step", "evaluate"]
    assert report.programs[0].signature == (
        "train_step(params['dense']['kernel']: float32[1024,4096], xb: float32[32,1024], yb: int32[32])"
    )
    assert report.programs[4].compiles == 0
    assert report.programs[4].compile_s is None
    assert [finding.severity for finding in report.findings] == ["error", "warning", "warning", "info", "info"]
    assert report.memory.live[3].name == "activations (last traceback)"


def test_unknown_times_stay_unknown():
    record = dataclasses.replace(examples.rich_record(), ready_s=None)
    assert build(record, (), environment={}).timing.run_s is None
    side_by_side = dataclasses.replace(examples.rich_record(), ready_s=1.0)
    assert build(side_by_side, (), environment={}).timing.run_s is None


def test_a_cell_without_programs_compiled_for_no_time_at_all():
    timing = build(CellRecord(wall_s=0.1, ready_s=0.1), (), environment={}).timing
    assert (timing.compiles, timing.compile_s, timing.run_s) == (0, 0.0, 0.1)


def test_a_thousand_programs_and_five_hundred_findings_fit_and_what_is_left_out_is_counted():
    report = build(examples.huge_record(), examples.huge_findings(), environment=examples.ENVIRONMENT)
    assert report.size_bytes <= 60_000
    assert len(report.programs) + report.omitted.programs == 1000
    kept = [finding.severity for finding in report.findings]
    assert kept.count("error") + report.omitted.errors == 167
    assert kept.count("warning") + report.omitted.warnings == 167
    assert kept.count("info") + report.omitted.infos == 166
    assert len(report.memory.live) + report.omitted.live == 3000
    assert len(report.unavailable) + report.omitted.unavailable == 100
    finding = report.findings[0]
    assert finding.title.endswith("more characters")
    assert finding.facts["sizes"][0] == 0
    assert finding.facts["sizes"][-1] == 4999
    assert finding.facts["sizes"][-2] == f"… {5000 - len(finding.facts['sizes']) + 1} more"
    assert finding.facts["more_related"] == 200 - len(finding.related)


def test_cutting_a_cut_report_again_still_counts_everything():
    report = build(examples.huge_record(), examples.huge_findings(), environment={str(n): n for n in range(100)})
    for limits in LEVELS:
        report = shortened(report, limits)
    finding = report.findings[0]
    title, _, rest = finding.title.partition("… ")
    assert len(title) + int(rest.split()[0]) == len(examples.huge_findings(1)[0].title)
    sizes = finding.facts["sizes"]
    assert len(sizes) - 1 + int(sizes[-2].split()[1]) == 5000
    assert len(report.environment) - 1 + int(report.environment["…"].split()[0]) == 100
    assert finding.facts["more_related"] == 200 - len(finding.related)
    assert len(report.programs) + report.omitted.programs == 1000


def test_a_report_that_fits_is_not_cut():
    report = examples.rich()
    assert fitted(report) == report
    assert shortened(report, LEVELS[0]) == report


def test_of_too_many_programs_the_slowest_of_the_user_stay_in_their_order():
    programs = (
        *(examples.eager("add", seconds=9.0) for _ in range(100)),
        *(examples.program(f"f{n}", n, seconds=1.0 + n % 2) for n in range(100)),
    )
    report = build(CellRecord(programs=programs), (), environment={})
    names = [program.name for program in report.programs]
    assert "add" not in names
    assert names == sorted(names, key=lambda name: int(name[1:]))
    assert set(names) >= {f"f{n}" for n in range(1, 100, 2)}


def test_fields_of_a_later_1_x_are_ignored():
    data = examples.rich().to_dict()
    data["colour"] = "red"
    data["findings"][0]["site"]["column"] = 4
    assert Report.from_dict(data) == examples.rich()


def test_absent_optional_fields_take_their_defaults():
    assert Report.from_dict({"version": 1}) == Report()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "the report has no version: it was not written by tpumagic"),
        ({"name": "x"}, "the report has no version: it was not written by tpumagic"),
        ({"version": 2}, "the report has version 2, and this tpumagic reads version 1"),
        ({"version": True}, "the report has version True, and this tpumagic reads version 1"),
        ({"version": "1"}, "the report has version '1', and this tpumagic reads version 1"),
        ({"version": 1, "programs": 3}, "report.programs is not a list"),
        ({"version": 1, "timing": {"wall_s": "fast"}}, "report.timing.wall_s is not a number"),
        ({"version": 1, "timing": {"compiles": True}}, "report.timing.compiles is not a whole number"),
        ({"version": 1, "findings": [{"kind": "a.b", "severity": "loud", "title": ""}]},
         "report.findings[0].severity is 'loud', not one of error, warning, info"),
        ({"version": 1, "findings": [{"kind": "a.b"}]}, "report.findings[0] lacks severity, title"),
        ({"version": 1, "memory": {"samples": [[1.0]]}}, "report.memory.samples[0] is not an object"),
        ({"version": 1, "environment": []}, "report.environment is not an object"),
        ({"version": 1, "cell": None}, "report.cell is not an object"),
    ],
)  # fmt: skip
def test_a_damaged_report_is_refused_in_one_sentence(data, message):
    with pytest.raises(ValueError) as caught:
        Report.from_dict(data)
    assert str(caught.value) == message
