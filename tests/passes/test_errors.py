"""What a user reads when JAX stops a cell: real exceptions, explained with the cell's own names."""

from __future__ import annotations

import pytest

from tpumagic.events import Call, CellRecord, Failure, FunctionId, Leaf, Program, Signature, SourceSite
from tpumagic.passes import errors


def only(record: CellRecord):
    findings = list(errors.find(record))
    assert len(findings) == 1
    return findings[0]


REDUCE = """\
@partial(jax.jit, static_argnums=1)
def reduce(x, dims):
    return x.sum(tuple(dims))

"""


def test_a_list_as_static_argument_is_named_with_the_tuple_to_pass(failed_cell):
    finding = only(failed_cell(REDUCE + "reduce(jnp.ones((2, 3)), [0])"))
    assert (finding.kind, finding.severity) == ("error.static_unhashable", "error")
    assert finding.title == "Static argument `dims` of `reduce` is a list, which cannot be hashed"
    assert (
        finding.detail
        == "JAX looks compiled programs up by the values of static arguments, so each of them needs a hash."
    )
    assert finding.fix == "Pass a tuple: `(0,)` instead of `[0]`."
    assert finding.site == SourceSite(line=5, cell=1)
    assert finding.facts == {"argument": "dims", "function": "reduce", "type": "list", "value": "[0]"}


@pytest.mark.parametrize(
    ("call", "title", "fix"),
    [
        ("config = {'a': 1}\nreduce(jnp.ones(3), config)",
         "Static argument `dims` of `reduce` is a dict, which cannot be hashed",
         "Pass `tuple(sorted(config.items()))`, or a frozen dataclass with these fields."),
        ("reduce(jnp.ones(3), dims={'a': 1})",
         "Static argument `dims` of `reduce` is a dict, which cannot be hashed",
         "Pass a tuple of its items, or a frozen dataclass with these fields."),
        ("axes = [0]\nreduce(jnp.ones(3), axes)",
         "Static argument `dims` of `reduce` is a list, which cannot be hashed",
         "Pass a tuple: `tuple(axes)`."),
        ("reduce(jnp.ones(3), {0, 1})",
         "Static argument `dims` of `reduce` is a set, which cannot be hashed",
         "Pass a frozenset: `frozenset({0, 1})`."),
        ("reduce(jnp.ones(3), np.arange(2))",
         "Static argument `dims` of `reduce` is a NumPy array, which cannot be hashed",
         "Take it out of the static arguments: arrays are traced. If its values must be static, pass a tuple."),
        ("reduce(jnp.ones(3), (1, [2]))",
         "Static argument `dims` of `reduce` is a tuple that holds a list, which cannot be hashed",
         "Use hashable parts inside as well: tuples for lists, not a list."),
        ("reduce.lower(jnp.ones(3), [2])",
         "Static argument `dims` of `reduce` is a list, which cannot be hashed",
         "Pass a tuple: `(2,)` instead of `[2]`."),
    ],
)  # fmt: skip
def test_each_unhashable_value_gets_the_change_that_suits_it(failed_cell, call, title, fix):
    finding = only(failed_cell(REDUCE + call))
    assert (finding.title, finding.fix) == (title, fix)


def test_an_unhashable_config_object_passed_as_self_is_named(failed_cell):
    cell = """\
from dataclasses import dataclass

@dataclass
class Model:
    width: int
    @partial(jax.jit, static_argnums=0)
    def apply(self, x):
        return x * self.width

model = Model(2)
model.apply(jnp.ones(3))
"""
    finding = only(failed_cell(cell))
    assert finding.title == "Static argument `self` of `model.apply` is a Model, which cannot be hashed"
    assert finding.fix == "Make `Model` hashable, for example with `@dataclass(frozen=True)`, or pass its fields."
    assert finding.site.line == 11


def test_a_traced_value_passed_as_static_is_told_apart(failed_cell):
    cell = "@partial(jax.jit, static_argnames='n')\ndef head(x, n):\n    return x[:n]\n\n@jax.jit\ndef outer(x, n):\n    return head(x, n)\n\nouter(jnp.ones(4), 2)\n"
    finding = only(failed_cell(cell))
    assert (
        finding.title
        == "Static argument `n` of `head` is a traced value here, and a static argument must be known while tracing"
    )
    assert finding.fix == "Make `n` static in the function that passes it too, or take `n` out of the static arguments."
    assert finding.site.line == 7
    assert [site.line for site in finding.related] == [9]


STEP = "step = jax.jit(lambda p: jax.tree.map(lambda a: a * 0.9, p), donate_argnums=0)\n"


def donating(record: CellRecord, path: str, shape: tuple[int, ...], line: int) -> CellRecord:
    """The record with the program that took the buffer, as the observer would have seen it."""
    from dataclasses import replace

    leaf = Leaf(path, shape, "float32", identity=7)
    site = SourceSite(line=line, cell=1)
    signature = Signature(FunctionId("step", "", 1), (leaf,), ())
    program = Program(
        "step", "jit", (site,), signature=signature, inputs=(leaf,), donated=(0,), calls=(Call((site,), 1),)
    )
    return replace(record, programs=(program,))


def test_an_array_used_after_donation_is_named_with_the_function_that_took_it(failed_cell):
    record = failed_cell(STEP + "params = jnp.ones(1024)\nnew = step(params)\nprint(params.sum())\n")
    finding = only(donating(record, "p", (1024,), 3))
    assert (finding.kind, finding.severity) == ("error.donated_reuse", "error")
    assert finding.title == "`params` was donated to `step` and cannot be used again"
    assert finding.detail == "`step` took over the buffer at In [1] line 3 (donate_argnums), so the array is gone."
    assert (
        finding.fix
        == "Let the result take the name: `params = step(params)`. If both are needed, pass `jnp.copy(params)`."
    )
    assert finding.site.line == 4
    assert [site.line for site in finding.related] == [3]


def test_a_donation_in_an_earlier_cell_is_explained_without_its_name(failed_cell):
    record = failed_cell("new = step(params)\nstep(params)\n", step=donating_step(), params=fresh_params())
    finding = only(record)
    assert finding.title == "`params['w']` was donated to a jitted function before this line and cannot be used again"
    assert (
        finding.detail == "A call with donate_argnums takes over the buffers of its arguments, so the arrays are gone."
    )
    assert finding.fix == "Use the result of that call instead of `params`, or pass it `jnp.copy(params)`."
    assert finding.site.line == 2


def donating_step():
    import jax

    return jax.jit(lambda p: jax.tree.map(lambda a: a * 0.9, p), donate_argnums=0)


def fresh_params():
    import jax.numpy as jnp

    return {"w": jnp.ones((8, 8))}


def test_a_gone_array_inside_a_function_is_also_called_what_the_caller_calls_it(failed_cell):
    cell = (
        STEP
        + "def norm(a):\n    return (a * a).sum()\n\nparams = {'w': jnp.ones(8)}\nstep(params)\nnorm(params['w'])\n"
    )
    finding = only(failed_cell(cell))
    assert (
        finding.title
        == "`a` (`params['w']` in the calling code) was donated to a jitted function before this line and cannot be used again"
    )
    assert finding.site.line == 3
    assert [site.line for site in finding.related] == [7]


def test_the_same_array_twice_in_a_donating_call_is_explained(failed_cell):
    cell = "add = jax.jit(lambda p, q: (p + 1, q + 1), donate_argnums=0)\nx = jnp.ones(8)\nadd(x, x)\n"
    finding = only(failed_cell(cell))
    assert finding.title == "`x` is passed twice to `add` in one call that donates it"
    assert finding.fix == "Pass a copy the second time: `jnp.copy(x)`."


def test_an_array_the_cell_deleted_itself_is_no_donation(failed_cell):
    assert list(errors.find(failed_cell("x = jnp.ones(3)\nx.delete()\nx + 1\n"))) == []


def pallas_cell(call: str) -> str:
    return (
        "from jax.experimental import pallas as pl\n"
        "def double(x_ref, o_ref):\n    o_ref[...] = x_ref[...] * 2\n\n"
        f"run = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))\n{call}\n"
    )


def test_a_pallas_kernel_on_cpu_is_told_how_to_be_tried(failed_cell):
    finding = only(failed_cell(pallas_cell("run(jnp.ones((8, 128)))")))
    assert (finding.kind, finding.severity) == ("unsupported.cpu_only", "error")
    assert (
        finding.title
        == "`run(jnp.ones((8, 128)))` runs a Pallas kernel, which JAX compiles for an accelerator and not for CPU"
    )
    assert finding.detail == "Only interpret mode is supported on CPU backend."
    assert (
        finding.fix
        == "To try it on CPU, pass `interpret=True` to `pallas_call`; it is slow but gives the same numbers."
    )
    assert finding.site.line == 6


def test_a_precision_that_cpu_lacks_is_named(failed_cell):
    cell = "p = jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X9\nx = jnp.ones((3, 3))\njax.lax.dot(x, x, precision=p)\n"
    finding = only(failed_cell(cell))
    assert (
        finding.title
        == "`jax.lax.dot(x, x, precision=p)` multiplies with precision BF16_BF16_F32_X9, which this CPU cannot do"
    )
    assert finding.fix == "Run it on a TPU, or use `precision='highest'` while it runs on CPU."


@pytest.mark.parametrize(
    "cell",
    [
        "raise ValueError('deleted or not, this is not for us')",
        "raise RuntimeError('value is not hashable')",
        "{}['deleted']",
        "jnp.ones(3) @ jnp.ones(4)",
        "jnp.ones(3).reshape(2, 2)",
        "x = [1][2]",
        "leaked = []\njax.jit(lambda x: leaked.append(x * 2))(1.0)\nleaked[0] + 1",
    ],
)
def test_other_errors_are_left_to_their_own_messages(failed_cell, cell):
    assert list(errors.find(failed_cell(cell))) == []


def test_a_cell_that_did_not_fail_has_no_error():
    assert list(errors.find(CellRecord(source="x = 1"))) == []


def test_a_failure_without_user_lines_is_still_explained():
    message = "Non-hashable static arguments are not supported. The error was:\nTypeError: unhashable type: 'list'"
    finding = only(CellRecord(failure=Failure("ValueError", message, ())))
    assert finding.title == "A static argument is a list, which cannot be hashed"
    assert finding.site is None
    assert finding.fix == "Pass a tuple."
