"""Why a jitted function was compiled again: every cause where it must be told, word for word, and where it must not."""

from dataclasses import replace

import pytest
from recompiled import FIRST, LEAF, LINE, STATIC, STEP, X, call, compiled, only, said, text

from tpumagic.events import (
    CellRecord,
    Compile,
    Leaf,
    Program,
    Signature,
    SourceSite,
    Structure,
)
from tpumagic.passes import recompilation

# shape


def test_the_smaller_last_batch_is_told_with_its_fix():
    full, last = replace(X, shape=(32, 8)), replace(X, shape=(31, 8))
    finding = only(compiled(call(full), call(last)))
    assert finding.kind == "recompile.shape"
    assert said(finding) == (
        "warning",
        "`step` was compiled again because `x` changed shape: (32, 8) -> (31, 8).",
        "1 extra compilation, 250 ms.",
        "Drop the incomplete last batch, or pad `x` to 32 rows and mask the padding, so that every call has shape (32, 8).",
    )
    assert finding.site == LINE
    assert finding.related == (STEP.definition,)
    assert (finding.count, finding.seconds, finding.program) == (1, 0.25, "step")
    assert finding.facts == {"function": "step", "compiles": 1, "argument": "x", "old": "(32, 8)", "new": "(31, 8)"}


def test_forty_shapes_are_one_finding():
    record = compiled(*(call(replace(X, shape=(n,))) for n in range(1, 41)))
    finding = only(record)
    assert said(finding) == (
        "warning",
        "`step` was compiled 39 more times because `x` changed shape: (1,) -> (2,) -> (3,) -> … -> (40,) (40 values).",
        "39 extra compilations, 9.75 s.",
        (
            "`x` grows by 1 along axis 0 from call to call: pad axis 0 to powers of two (7 programs up to 64 instead of 40) "
            "and mask the padding, or make the loop a `jax.lax.scan` over an array of the final length."
        ),
    )
    assert (finding.count, finding.facts["value_count"]) == (39, 40)


def test_lengths_without_order_are_padded():
    finding = only(compiled(*(call(replace(X, shape=(4, n))) for n in (5, 9, 7, 6))))
    assert (
        finding.fix
        == "Use few lengths for `x`: pad axis 1 to powers of two (2 programs up to 16 instead of 4) and mask the padding."
    )


def test_another_number_of_axes_is_told_as_such():
    finding = only(compiled(call(X), call(replace(X, shape=(8, 1)))))
    assert finding.fix == "Give `x` the same number of axes in every call, or accept one program for each."


def test_arguments_that_changed_together_are_one_finding():
    old, new = ([Leaf(name, (size, 2), "float32") for name in "abcdef"] for size in (4, 3))
    finding = only(compiled(call(*old), call(*new)))
    assert finding.title == (
        "`step` was compiled again because `a` changed shape: (4, 2) -> (3, 2); so did `b`, `c`, `d` and 2 more."
    )
    assert finding.facts["also"] == ["b", "c", "d", "e", "f"]


def test_two_lines_are_two_findings():
    one, two, three = (call(replace(X, shape=(n,)), site=SourceSite(n, cell=5)) for n in (1, 2, 3))
    assert [f.site.line for f in recompilation.find(compiled(one, two, three))] == [2, 3]


def test_a_call_from_a_helper_has_the_line_of_the_cell_in_related():
    helper, cell = SourceSite(3, cell=2, function="train"), SourceSite(1, cell=5)
    old, new = call(X, site=helper), call(replace(X, shape=(9,)), site=helper)
    record = CellRecord(
        source="train()",
        cell=5,
        programs=(Program("step", "jit", compiles=(Compile(new, (cell, helper), compile_s=0.1, earlier=(old,)),)),),
    )
    finding = only(record)
    assert finding.site == helper
    assert finding.related == (cell, STEP.definition)


@pytest.mark.parametrize(
    "source",
    [
        "\n\n\n\n# warm-up of all sizes\nfor n in sizes:\n\n    step(ones(n))",
        "\n\n\n\n\n\n\nwarmed = step(x)",
    ],
)
def test_a_warm_up_that_says_so_is_quiet(source):
    record = compiled(call(X), call(replace(X, shape=(9,))), source=source)
    assert only(record).severity == "info"


def test_a_warm_up_before_the_loop_does_not_silence_the_loop():
    source = "\n\n\n\nstep(x)  # warm up\nstart()\nfor n in sizes:\n    step(ones(n))"
    assert only(compiled(call(X), call(replace(X, shape=(9,))), source=source)).severity == "warning"


def test_programs_compiled_ahead_of_time_were_asked_for():
    assert only(compiled(call(X), call(replace(X, shape=(9,))), kind="aot")).severity == "info"


def test_the_first_compilation_is_no_finding():
    assert list(recompilation.find(compiled(call(X), known=0))) == []


def test_operations_outside_jit_are_not_told_here():
    assert list(recompilation.find(compiled(call(X), call(replace(X, shape=(9,))), kind="eager"))) == []


# dtype, weak_type


def test_another_dtype_is_told_with_the_cast():
    finding = only(compiled(call(X, site=FIRST), call(replace(X, dtype="int32"))))
    assert said(finding) == (
        "warning",
        "`step` was compiled again because `x` changed dtype: float32 -> int32.",
        "1 extra compilation, 250 ms. Compared with the call at In [5] line 6.",
        "Give `x` dtype float32 in every call: `x.astype(jnp.float32)`, or `dtype=jnp.float32` where it is made.",
    )
    assert finding.related == (FIRST, STEP.definition)


def test_a_python_int_for_a_float_array_is_cast_as_a_scalar():
    old, new = Leaf("s", (), "float32"), Leaf("s", (), "int32", True, origin="scalar")
    finding = only(compiled(call(old), call(new)))
    assert finding.kind == "recompile.dtype"
    assert finding.title.endswith("because `s` changed dtype: float32 -> int32 (Python scalar).")
    assert "`jnp.asarray(s, jnp.float32)`" in finding.fix
    assert finding.detail.endswith("Also changed: `s` (weak_type) float32 array -> Python int.")


def test_a_python_number_that_becomes_an_array_is_told():
    old, new = Leaf("total", (), "float32", True, origin="scalar"), Leaf("total", (), "float32")
    assert said(only(compiled(call(old), call(new)))) == (
        "warning",
        (
            "`step` was compiled again because `total` was once a Python number (weakly typed) and once a typed array: "
            "Python float -> float32 array."
        ),
        "1 extra compilation, 250 ms.",
        "Pass the same kind every time: `jnp.asarray(total, jnp.float32)` before the first call.",
    )


# static


def test_a_static_counter_is_to_be_traced():
    finding = only(compiled(*(call(X, statics=(text(str(i), name="i"),), options=STATIC) for i in range(3))))
    assert said(finding) == (
        "warning",
        "`step` was compiled 2 more times because static argument `i` took new values: 0 -> 1 -> 2.",
        "2 extra compilations, 500 ms.",
        (
            "Take `i` out of `static_argnums`/`static_argnames` so that it is traced; if it has to be static "
            "(it sets a shape, a branch or a loop's length), give it few values."
        ),
    )
    assert finding.facts["values"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("values", "severity"),
    [
        (["3", "4"], "warning"),
        (["0.1", "1e-05"], "warning"),
        (["(3, 4)", "(3, 5)"], "warning"),
        (["True", "False"], "info"),
        (["None", "True"], "info"),
        (["'edge'", "'wrap'", "'reflect'"], "info"),
        (["relu", "tanh", "gelu"], "info"),
        (["'run1'", "'run2'"], "info"),
        (["'run1'", "'run2'", "'run3'"], "warning"),
        (["Cfg(n=1)", "Cfg(n=2)"], "warning"),
        (["Cfg(kind='a')", "Cfg(kind='b')"], "info"),
    ],
)
def test_numbers_could_be_traced_flags_and_modes_could_not(values, severity):
    assert only(compiled(*(call(X, statics=(text(value),)) for value in values))).severity == severity


def test_two_configurations_used_at_two_lines_are_meant():
    one, two = (call(X, statics=(text(f"Cfg(n={n})"),), site=SourceSite(n, cell=5)) for n in (1, 2))
    assert only(compiled(one, two)).severity == "info"


def test_a_flag_gets_no_advice_to_trace_it():
    finding = only(compiled(*(call(X, statics=(text(value, name="train"),)) for value in ("True", "False"))))
    assert (
        finding.fix
        == "Each value of `train` selects a program of its own: right for a flag or mode, as long as it has few values."
    )


def configured(key: str, site: SourceSite = LINE) -> Signature:
    cfg = text("Cfg", key, "Cfg", name="cfg", by_identity=True)
    return call(X, statics=(cfg,), positional=("x", "cfg"), site=site)


@pytest.mark.parametrize(
    "source",
    ["for i in range(2):\n    step(x, Cfg(2))", "for i in range(2):\n    cfg = Cfg(2)\n    y = step(x, cfg)", "for i in r:\n    step(x, cfg=Cfg(2))"],
)  # fmt: skip
def test_an_object_made_for_each_call_and_compared_by_identity_is_told(source):
    source = "\n" * (8 - source.count("\n") - 1) + source
    finding = only(compiled(configured("1"), configured("2"), source=source))
    assert finding.kind == "recompile.static_identity"
    assert said(finding) == (
        "warning",
        (
            "`step` was compiled again because static argument `cfg` is a new `Cfg` object each time (`Cfg`), and these are "
            "compared by identity."
        ),
        "1 extra compilation, 250 ms.",
        (
            "Make one object and pass it in every call, or give `Cfg` equality by value: "
            "`@dataclasses.dataclass(frozen=True)`, or `__eq__` and `__hash__`."
        ),
    )


def test_the_same_object_written_out_at_two_lines_is_told_and_two_different_ones_are_not():
    same = "\n\n\n\n\nstep(x, Cfg(2))\n\nstep(x, Cfg(2))"
    assert only(compiled(configured("1", FIRST), configured("2"), source=same)).severity == "warning"
    assert only(compiled(configured("1", FIRST), configured("2"), source=same.replace("2", "3", 1))).severity == "info"


@pytest.mark.parametrize("source", ["for cfg in configs:\n    step(x, cfg)", "small = Cfg(1)\nstep(x, small)"])
def test_objects_kept_in_variables_may_mean_different_things(source):
    source = "\n" * (8 - source.count("\n") - 1) + source
    assert only(compiled(configured("1"), configured("2"), source=source)).severity == "info"


def test_two_models_whose_jitted_method_takes_self_static_are_meant():
    def method(key: str) -> Signature:
        return call(X, statics=(text("Model", key, "Model", name="self", by_identity=True),), positional=("self", "x"))

    meant = "\n\n\n\n\n\nfor m in models:\n    m.step(x)"
    assert only(compiled(method("1"), method("2"), source=meant)).severity == "info"
    made = "\n\n\n\n\n\nfor k in range(3):\n    Model(k).step(x)"
    assert only(compiled(method("1"), method("2"), source=made)).severity == "warning"


def test_a_lambda_as_static_argument_is_told_in_its_own_words():
    def applied(key: str) -> Signature:
        function = text("<lambda>", key, "function", name="fn", by_identity=True)
        return call(X, statics=(function,), positional=("fn", "x"))

    finding = only(compiled(applied("1"), applied("2"), source="\n\n\n\n\n\nfor i in r:\n    step(lambda a: a, x)"))
    assert finding.severity == "warning"
    assert finding.title == (
        "`step` was compiled again because static argument `fn` is a new function object (`<lambda>`) each time, and "
        "functions are compared by identity."
    )
    assert finding.fix == "Define the function for `fn` once, outside the loop, and pass that one."


def test_a_number_that_a_filtering_jit_takes_for_static_is_to_become_an_array():
    finding = only(compiled(*(call(X, statics=(text(rate, name="rate"),)) for rate in ("0.1", "0.2"))))
    assert finding.fix == "Pass `rate` as an array, `jnp.asarray(rate)`, so that it is traced."


# structure


def structured(*structures: Structure, name: str = "batch") -> list[Signature]:
    return [call(structure=((name, one),), positional=(name,)) for one in structures]


def test_a_gained_key_is_told():
    before = Structure("dict", ("'x'",), (), (LEAF,))
    after = Structure("dict", ("'mask'", "'x'"), (), (LEAF, LEAF))
    finding = only(compiled(*structured(before, after)))
    assert finding.kind == "recompile.pytree"
    assert said(finding)[1:] == (
        "`step` was compiled again because `batch` gained key 'mask': keys 'x' -> keys 'mask', 'x'.",
        "1 extra compilation, 250 ms.",
        "Give `batch` the same keys in every call, with a neutral value where there is nothing to say.",
    )
    assert finding.facts["change"] == "gained key 'mask'"


def test_other_changes_of_structure_have_their_own_fix():
    def fix(before: Structure, after: Structure) -> str:
        return only(compiled(*structured(before, after))).fix

    two, three = (Structure("list", tuple("012"[:n]), (), (LEAF,) * n) for n in (2, 3))
    assert fix(two, three) == "Keep the length of `batch`, or stack its parts into one array with a leading axis."
    assert fix(Structure("None"), LEAF) == (
        "Pass an array for `batch` in every call (zeros or ones of its shape where there is none)."
    )
    assert fix(replace(two, kind="tuple"), two) == "Give `batch` the same structure in every call."


def test_an_argument_now_given_is_told():
    finding = only(compiled(call(X), call(X, Leaf("mask", (8,), "bool"))))
    assert finding.title == "`step` was compiled again because `mask` is now given."
    assert finding.fix == "Pass `mask` in every call, with its default value where there is nothing to pass."


def test_a_static_field_is_told_as_what_it_is():
    model = [Structure("Model", ("w",), (("rate", rate),), (LEAF,)) for rate in ("0.1", "0.2")]
    finding = only(compiled(*structured(*model, name="model")))
    assert finding.kind == "recompile.static_field"
    assert said(finding)[1:] == (
        "`step` was compiled again because static field `rate` of `model` changed: 0.1 -> 0.2.",
        "1 extra compilation, 250 ms.",
        (
            "Keep it constant between calls, or make `rate` data: a field that is a leaf of the pytree (an array) is traced "
            "and does not compile again."
        ),
    )


def test_a_keyword_after_a_position_is_told():
    y = Leaf("y", (8,), "float32")
    finding = only(compiled(call(X, y), call(X, y, positional=("x",), keywords=("y",))))
    assert finding.kind == "recompile.call_style"
    assert said(finding)[1:] == (
        "`step` was compiled again because `y` was passed by keyword after it had been passed by position.",
        "1 extra compilation, 250 ms.",
        "Call `step` one way: `y` always by position (the program is the same).",
    )


# surroundings


def test_a_setting_is_named_with_both_values():
    old = call(X, context=(("jax_default_matmul_precision", "None"),), site=FIRST)
    finding = only(compiled(old, replace(old, context=(("jax_default_matmul_precision", "'highest'"),), site=LINE)))
    assert finding.kind == "recompile.context"
    assert said(finding)[1:] == (
        "`step` was compiled again because the setting jax_default_matmul_precision changed: None -> 'highest'.",
        "1 extra compilation, 250 ms. Compared with the call at In [5] line 6.",
        "Set jax_default_matmul_precision once, before the first call of `step`, and leave it.",
    )
    assert finding.facts["setting"] == "jax_default_matmul_precision"


def test_another_mesh_is_told_as_one():
    old, new = (call(X, context=(("abstract_mesh_context_manager", mesh),)) for mesh in ("None", "Mesh('d': 4)"))
    finding = only(compiled(old, new))
    assert finding.title == "`step` was compiled again because the mesh in force changed: None -> Mesh('d': 4)."
    assert finding.fix == "Enter the mesh once, around every call of `step`."


def test_another_sharding_is_told_with_both_specs():
    split = replace(X, sharding="P('d') over (d=4)", devices=(0, 1, 2, 3), committed=True)
    finding = only(compiled(call(split), call(replace(split, sharding="P() over (d=4)"))))
    assert finding.kind == "recompile.sharding"
    assert said(finding)[1:] == (
        "`step` was compiled again because `x` came with another sharding: P('d') over (d=4) -> P() over (d=4).",
        "1 extra compilation, 250 ms.",
        (
            "Put `x` into one sharding before every call, `jax.device_put(x, sharding)`, or name it in "
            "`jax.jit(..., in_shardings=)`."
        ),
    )


def test_parameters_that_come_back_sharded_are_to_be_sharded_before_the_first_call():
    split = replace(X, sharding="P() over (d=4)", devices=(0, 1, 2, 3), committed=True)
    assert only(compiled(call(X), call(split))).fix == (
        "Put `x` into one sharding before every call, `jax.device_put(x, sharding)`, the first call included."
    )


def test_commitment_to_a_device_is_told():
    finding = only(compiled(call(X), call(replace(X, committed=True))))
    assert finding.kind == "recompile.committed"
    assert said(finding)[1:] == (
        "`step` was compiled again because `x` is committed to device 0 and was not committed to a device.",
        "1 extra compilation, 250 ms.",
        "Treat `x` the same way before every call: always `jax.device_put(x, device)`, or never.",
    )


def test_other_jit_options_are_told():
    finding = only(compiled(call(X), call(X, options=(("donate_argnums", "(0,)"),))))
    assert finding.kind == "recompile.options"
    assert said(finding) == (
        "warning",
        "`step` was compiled again because it was jitted again with another donate_argnums: not set -> (0,).",
        "1 extra compilation, 250 ms.",
        "Jit `step` once, with the options that all calls can share, and call that one.",
    )


def test_a_first_gradient_is_no_fault_and_the_third_at_a_line_is_a_loop():
    transforms = [call(X), *(call(X, transform=name) for name in ("JVP", "Batch", "Linearize"))]
    finding = only(compiled(*transforms[:2]))
    assert finding.kind == "recompile.transform"
    assert said(finding) == (
        "info",
        "`step` was compiled again because it was called under another transformation: none -> JVP.",
        "1 extra compilation, 250 ms.",
        "Nothing to do for a first gradient or batch. In a loop, make and jit the transformed function once, before it.",
    )
    assert only(compiled(*transforms)).severity == "warning"


def test_a_dropped_program_is_told():
    finding = only(compiled(call(X), call(X), evicted=True))
    assert finding.kind == "recompile.evicted"
    assert said(finding) == (
        "warning",
        "`step` was compiled again although the same call had been compiled before: its program was dropped from JAX's caches.",
        "1 extra compilation, 250 ms.",
        (
            "Do not call `jax.clear_caches()` (or `clear_cache()`) between calls; for restarts, turn on JAX's persistent "
            "compilation cache (`%tpu_env jax --cache DIR`)."
        ),
    )


def test_without_a_visible_cause_it_is_loud_only_where_it_costs():
    finding = only(compiled(call(X), call(X)))
    assert finding.kind == "recompile.unknown"
    assert said(finding) == (
        "info",
        "`step` was compiled again though nothing that tpumagic can see differs from an earlier call.",
        "1 extra compilation, 250 ms.",
        "Look at JAX's own explanation: `jax.config.update('jax_explain_cache_misses', True)`.",
    )
    record = compiled(call(X), call(X))
    dear = replace(record.programs[0].compiles[0], compile_s=2.0)
    assert only(replace(record, programs=(replace(record.programs[0], compiles=(dear,)),))).severity == "warning"


# what else is said


def test_compilations_that_the_persistent_cache_answered_are_counted():
    record = compiled(call(X), call(replace(X, shape=(9,))), call(replace(X, shape=(5,))))
    first = record.programs[0]
    answered = replace(first, compiles=(replace(first.compiles[0], cache="hit"),))
    finding = only(replace(record, programs=(answered, record.programs[1])))
    assert finding.severity == "warning"
    assert finding.detail == (
        "2 extra compilations, 500 ms. The persistent cache answered 1 of them: only tracing and lowering had to be done again."
    )


def test_what_changed_besides_the_cause_is_told_in_the_detail():
    y = Leaf("y", (4,), "float32")
    finding = only(compiled(call(X, y), call(replace(X, dtype="int32"), replace(y, shape=(5,)))))
    assert finding.kind == "recompile.dtype"
    assert finding.detail == "1 extra compilation, 250 ms. Also changed: `y` (shape) (4,) -> (5,)."


def test_a_compilation_without_signature_or_place_is_no_reason_to_fail():
    program = Program(
        "step", "jit", compiles=(Compile(None, ()), Compile(call(X), (), earlier=(call(replace(X, shape=(1,))),)))
    )
    assert only(CellRecord(programs=(program,))).site == LINE
