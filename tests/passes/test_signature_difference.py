"""Comparison of two signatures: pure, total, the same both ways."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpumagic.events import FunctionId, Leaf, Signature, SourceSite, StaticValue, Structure
from tpumagic.passes.signature_difference import PRECEDENCE, Difference, closest, differences

LEAF = Structure("leaf")
STEP = FunctionId("step", "step:1", 10, SourceSite(1, cell=1))


def signature(*leaves: Leaf, function: FunctionId = STEP, **fields) -> Signature:
    names = tuple(leaf.path for leaf in leaves)
    base = {"structure": tuple((name, LEAF) for name in names), "positional": names}
    return Signature(function=function, leaves=leaves, **{**base, **fields})


X = Leaf("x", (8,), "float32")


def only(new: Signature, old: Signature) -> Difference:
    found = differences(new, old)
    assert len(found) == 1, found
    return found[0]


names = st.sampled_from(["x", "y", "batch['mask']", "params.w"])
texts = st.sampled_from(["1", "2", "None", "highest", "relu"])
structures = st.recursive(
    st.sampled_from([LEAF, Structure("None")]),
    lambda inner: st.lists(inner, max_size=3).flatmap(
        lambda children: st.sampled_from(
            [
                Structure("list", tuple(map(str, range(len(children)))), (), tuple(children)),
                Structure("dict", tuple(f"'{c}'" for c in "abc"[: len(children)]), (), tuple(children)),
                Structure("Model", tuple("pqr"[: len(children)]), (("rate", "0.1 #1"),), tuple(children)),
                Structure("Model", tuple("pqr"[: len(children)]), (("rate", "0.2 #2"),), tuple(children)),
            ]
        )
    ),
    max_leaves=6,
)
leaf_values = st.builds(
    Leaf,
    path=names,
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "int32", "bfloat16"]),
    weak_type=st.booleans(),
    sharding=st.sampled_from([None, "P('d') over (d=4)", "P() over (d=4)"]),
    devices=st.sampled_from([(), (0,), (1,), (0, 1)]),
    committed=st.sampled_from([None, False, True]),
    origin=st.sampled_from(["device", "host", "scalar"]),
)
signatures = st.builds(
    Signature,
    function=st.builds(
        FunctionId,
        name=st.just("step"),
        code_key=st.sampled_from(["a", "b"]),
        identity=st.integers(1, 3),
        definition=st.sampled_from([None, SourceSite(1, cell=1), SourceSite(1, cell=2), SourceSite(5, file="a.py")]),
        closure=st.lists(st.tuples(names, texts), max_size=2).map(tuple),
    ),
    leaves=st.lists(leaf_values, max_size=4).map(tuple),
    structure=st.lists(st.tuples(names, structures), max_size=3).map(tuple),
    statics=st.lists(
        st.builds(StaticValue, name=names, text=texts, type_name=texts, key=texts, by_identity=st.booleans()),
        max_size=2,
    ).map(tuple),
    positional=st.lists(names, max_size=3, unique=True).map(tuple),
    keywords=st.lists(names, max_size=2, unique=True).map(tuple),
    context=st.lists(st.tuples(names, texts), max_size=2).map(tuple),
    options=st.lists(st.tuples(names, texts), max_size=2).map(tuple),
    transform=st.sampled_from([None, "JVP", "Batch"]),
    site=st.sampled_from([None, SourceSite(3, cell=1), SourceSite(3, cell=2)]),
)


@given(signatures)
def test_a_signature_does_not_differ_from_itself(one):
    assert differences(one, one) == []
    assert differences(one, replace(one)) == []


@given(signatures, signatures)
def test_comparing_the_other_way_round_gives_the_same_kinds_for_the_same_names(one, other):
    there, back = differences(one, other), differences(other, one)
    assert Counter((d.kind, d.name) for d in there) == Counter((d.kind, d.name) for d in back)
    assert {d.kind for d in there} <= set(PRECEDENCE)


@given(signatures, signatures)
def test_every_difference_has_a_name_and_the_best_explanation_comes_first(one, other):
    found = differences(one, other)
    assert all(d.name for d in found)
    ranks = [PRECEDENCE.index(d.kind) for d in found]
    assert ranks == sorted(ranks)


@given(signatures, st.lists(signatures, max_size=4))
def test_the_closest_has_no_more_kinds_than_any_other_of_the_same_function_object(one, others):
    found = closest(one, tuple(others))
    assert (found is None) == (not others)
    if found is not None:
        same = [o for o in others if o.function.identity == one.function.identity] or [found[0]]
        assert len({d.kind for d in found[1]}) <= min(len({d.kind for d in differences(one, o)}) for o in same)


def test_shape_dtype_and_weak_type_are_told_apart():
    assert only(signature(replace(X, shape=(31, 8))), signature(replace(X, shape=(32, 8)))) == Difference(
        "shape", "x", "(32, 8)", "(31, 8)"
    )
    assert only(signature(replace(X, dtype="int32")), signature(X)) == Difference("dtype", "x", "float32", "int32")
    scalar = Leaf("x", (), "float32", weak_type=True, origin="scalar")
    array = Leaf("x", (), "float32")
    assert only(signature(array), signature(scalar)) == Difference("weak_type", "x", "Python float", "float32 array")
    assert only(signature(replace(array, weak_type=True)), signature(array)).new_text == "weakly typed float32 array"


def test_an_argument_passed_another_way_is_not_a_new_structure():
    both = ("x", "y")
    y = Leaf("y", (8,), "float32")
    old = signature(X, y, positional=both)
    new = signature(X, y, positional=("x",), keywords=("y",))
    assert only(new, old) == Difference("call_style", "y", "by position", "by keyword")
    assert only(old, new) == Difference("call_style", "y", "by keyword", "by position")


def test_an_argument_left_out_before_is_named():
    found = only(signature(X, Leaf("scale", (), "float32")), signature(X))
    assert (found.kind, found.name, found.change) == ("pytree", "scale", "is now given")


def test_a_gained_key_is_named_with_its_argument_and_the_leaves_that_stay_are_no_news():
    before = Structure("dict", ("'x'",), (), (LEAF,))
    after = Structure("dict", ("'mask'", "'x'"), (), (LEAF, LEAF))
    x, mask = Leaf("batch['x']", (8,), "float32"), Leaf("batch['mask']", (8,), "bool")
    old = signature(x, structure=(("batch", before),), positional=("batch",))
    new = signature(mask, x, structure=(("batch", after),), positional=("batch",))
    assert only(new, old) == Difference("pytree", "batch", "keys 'x'", "keys 'mask', 'x'", "gained key 'mask'")
    assert only(old, new).change == "lost key 'mask'"


def test_a_change_deep_inside_has_the_path_a_user_would_write():
    def model(rate: str, layers: int) -> Structure:
        stack = Structure("list", tuple(map(str, range(layers))), (), (LEAF,) * layers)
        inner = Structure("Layer", ("w",), (("rate", rate),), (stack,))
        return Structure("dict", ("'net'",), (), (inner,))

    def made(rate: str, layers: int) -> Signature:
        return signature(structure=(("state", model(rate, layers)),), positional=("state",))

    assert only(made("0.2", 2), made("0.1", 2)) == Difference("static_field", "state['net'].rate", "0.1", "0.2")
    assert only(made("0.1", 3), made("0.1", 2)) == Difference(
        "pytree", "state['net'].w", "list of 2", "list of 3", "changed its length"
    )


def test_a_text_beside_children_is_shown_without_the_key_that_tells_two_equal_texts_apart():
    before, after = (Structure("Model", ("w",), (("config", f"Config #{n}"),), (LEAF,)) for n in (1, 2))
    found = only(signature(structure=(("m", after),)), signature(structure=(("m", before),)))
    assert found == Difference("static_field", "m.config", "Config", "Config")


def test_none_and_an_array_are_two_structures():
    found = only(signature(structure=(("m", LEAF),)), signature(structure=(("m", Structure("None")),)))
    assert found == Difference("pytree", "m", "None", "an array", "changed its type")


def test_equal_texts_compared_by_identity_are_not_a_new_value():
    def given(key: str, **fields) -> Signature:
        return signature(X, statics=(StaticValue("cfg", "Cfg", "Cfg", key, **fields),))

    assert only(given("2", by_identity=True), given("1", by_identity=True)).kind == "static_identity"
    assert only(given("2"), given("1")).kind == "static"
    assert differences(given("1"), given("1")) == []


def test_sharding_and_commitment_are_told_apart():
    plain = replace(X, devices=(0,), committed=False)
    bound = replace(plain, committed=True)
    spread = replace(X, devices=(0, 1), committed=True, sharding="P('d') over (d=2)")
    copied = replace(spread, sharding="P() over (d=2)")
    assert only(signature(copied), signature(spread)) == Difference("sharding", "x", spread.sharding, copied.sharding)
    assert only(signature(bound), signature(plain)) == Difference(
        "committed", "x", "not committed to a device", "committed to device 0"
    )
    assert only(signature(replace(bound, devices=(1,))), signature(bound)).old_text == "device 0"


def test_a_host_array_after_an_uncommitted_one_is_no_difference():
    host = replace(X, origin="host", committed=None)
    assert differences(signature(host), signature(replace(X, devices=(0,), committed=False))) == []


def test_the_same_source_made_again_is_redefined_by_a_rerun_and_a_new_function_otherwise():
    again = replace(STEP, identity=11)
    rerun = replace(STEP, identity=11, definition=SourceSite(1, cell=2))
    edited = replace(rerun, code_key="step:2")
    assert only(signature(X, function=again), signature(X)).kind == "new_function"
    assert only(signature(X, function=rerun), signature(X)).kind == "redefined"
    assert only(signature(X, function=edited), signature(X)).change == "its source changed"


def test_a_factory_called_by_the_rerun_of_another_cell_is_redefined():
    again = replace(STEP, identity=11)
    old = signature(X, site=SourceSite(4, cell=2))
    assert only(signature(X, function=again, site=SourceSite(4, cell=3)), old).kind == "redefined"
    assert only(signature(X, function=again, site=SourceSite(9, cell=3)), old).kind == "new_function"


def test_the_captured_value_that_changed_is_told():
    one, two = (replace(STEP, identity=i, closure=(("n", str(i)), ("m", "5"))) for i in (1, 2))
    found = only(signature(X, function=two), signature(X, function=one))
    assert (found.old_text, found.new_text, found.change) == ("n=1", "n=2", "captured values changed")


def test_jit_options_by_name_are_not_told_beside_the_same_options_by_number():
    new = signature(X, options=(("donate_argnames", "('x',)"), ("donate_argnums", "(0,)")))
    assert only(new, signature(X)) == Difference("options", "donate_argnums", "not set", "(0,)")


@pytest.mark.parametrize("position", range(3))
def test_the_explanation_is_taken_from_the_closest_earlier_call(position):
    y = Leaf("y", (), "float32")
    earlier = [signature(X, y), signature(replace(X, dtype="bfloat16"), y), signature(replace(X, shape=(9,)), y)]
    earlier.insert(position, signature(X))
    found = closest(signature(replace(X, dtype="bfloat16")), tuple(earlier))
    assert found is not None
    # Twice as near: the same dtype with an argument more is one difference, another dtype is one as well; the latest wins.
    assert len(found[1]) == 1


def test_of_equally_near_calls_the_latest_explains():
    earlier = tuple(signature(replace(X, shape=(n,))) for n in (1, 2, 3))
    found = closest(signature(replace(X, shape=(4,))), earlier)
    assert found is not None
    assert found[1] == [Difference("shape", "x", "(3,)", "(4,)")]


def test_an_older_object_of_the_name_explains_nothing_while_the_function_itself_is_known():
    rerun = replace(STEP, identity=11, definition=SourceSite(1, cell=2))
    earlier = (signature(replace(X, shape=(9,)), function=rerun), signature(X))
    found = closest(signature(X, function=rerun), earlier)
    assert found is not None
    assert [d.kind for d in found[1]] == ["shape"]
