"""Computation outside jit that is repeated: every operation is a program of its own, dispatched from Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpumagic.events import CellRecord, Program, SourceSite, Stack
from tpumagic.findings import REPETITIONS, Finding, quantity
from tpumagic.numbers import seconds_text
from tpumagic.passes.host_lines import CellLines, call_stacks, made_in_loop, stored
from tpumagic.sources import Source, dotted

FEWEST_PROGRAMS = 5
"""A few operations beside a jitted step (a counter, a mean, a key) are bookkeeping, not the computation."""
FEWEST_ITEMS = 10
"""A comprehension carries nothing from turn to turn: a few items, such as the columns of a small matrix, are no loop of
steps."""

_SET_UP = frozenset(
    {
        "broadcast_in_dim", "iota", "stage", "convert_element_type", "copy", "copy_p", "fold_in", "random_bits", "eye",
        "random_seed", "random_wrap", "random_unwrap", "random_split", "random_fold_in", "arange", "linspace", "full",
        "threefry2x32", "threefry_seed", "threefry_split", "threefry_fold_in", "normal", "uniform", "randint", "bernoulli",
        "shuffle", "gumbel", "truncated_normal", "split", "choice", "permutation", "categorical",
    }
)  # fmt: skip
"""Making arrays and random numbers."""
_TAKING_PARTS = frozenset(
    {
        "dynamic_slice", "slice", "squeeze", "gather", "unstack", "reshape", "broadcast_arrays", "stack", "concatenate",
        "scatter", "dynamic_update_slice", "expand_dims", "rewriting_take", "take",
    }
)  # fmt: skip
_INDEX_ARITHMETIC = frozenset({"less", "lt", "add", "select_n", "where"})
"""Programs that ``x[i]`` runs to bring a negative index into range."""


@dataclass
class Place:
    """A function that is called again and again, or the body of a loop (function is None). depth: its position in the
    stacks; loop: the loop's header. sites: the lines that dispatch, with the programs of each."""

    key: tuple[object, ...]
    function: str | None
    depth: int
    loop: SourceSite | None
    caller: SourceSite | None
    sites: dict[SourceSite, dict[int, Program]] = field(default_factory=dict[SourceSite, dict[int, Program]])

    @property
    def programs(self) -> dict[int, Program]:
        """The distinct programs, by id."""
        return {key: one for programs in self.sites.values() for key, one in programs.items()}


def find(record: CellRecord) -> Iterator[Finding]:
    """One finding for each outermost loop whose body computes outside jit."""
    lines = CellLines(record)
    places = _places(lines)
    taken: set[int] = set()
    by_loop: dict[object, list[Place]] = {}
    for place in sorted(places.values(), key=lambda one: (-one.depth, one.function is None)):
        left = [key for key in place.programs if key not in taken]
        if len(left) >= FEWEST_PROGRAMS:
            taken |= set(place.programs)
            by_loop.setdefault(place.loop, []).append(place)
    for found in by_loop.values():
        yield _finding(lines, found)


def _places(lines: CellLines) -> dict[tuple[object, ...], Place]:
    places: dict[tuple[object, ...], Place] = {}
    for program in lines.record.programs:
        if program.kind != "eager" or program.outside:
            continue
        for stack in call_stacks(program):
            if _computes(lines, program, stack[-1]) and _seen_again(program) and not _sets_up(lines, stack):
                for place in _candidates(lines, program, stack):
                    known = places.setdefault(place.key, place)
                    known.sites.setdefault(stack[-1], {})[id(program)] = program
    return places


def _sets_up(lines: CellLines, stack: Stack) -> bool:
    """Whether the line stands in a function that says so by its name, or fills a new array: random numbers or ones,
    scaled, and nothing that was computed before."""
    if any("init" in (frame.function or "").lower() or _initialises(lines, frame) for frame in stack):
        return True
    source = lines.source(stack[-1])
    statement = source.statement(stack[-1].line) if source is not None else None
    if source is None or statement is None or isinstance(statement, ast.For | ast.While | ast.AugAssign):
        return False
    fills = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and _fills(source, one)]
    within = {id(below) for one in fills for below in ast.walk(one)}
    others = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and id(one) not in within]
    function = source.function(stack[-1].line)
    loops = source.loops(stack[-1].line)
    computed = frozenset[str]().union(*(made_in_loop(one) for one in loops))
    if function is not None:
        computed |= frozenset[str]().union(*(stored(one) for one in function.node.body))
        computed |= frozenset(one.arg for one in function.node.args.args)
    used = {
        one.id
        for one in ast.walk(statement)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and id(one) not in within
    }
    keeps = {"append", "sqrt", "float", "len", "dict", "list", "tuple", "zip", "range", "enumerate"}
    return (
        bool(fills)
        and not used & (computed - _receivers(others))
        and all((dotted(one.func) or "").rpartition(".")[2] in keeps for one in others)
    )


def _initialises(lines: CellLines, frame: SourceSite) -> bool:
    """Whether a line calls something named so: flax runs the model's own code for ``model.init(key, x)``."""
    source = lines.source(frame)
    calls = source.calls(frame.line) if source is not None else ()
    return any(call.callee.rpartition(".")[2].lower().startswith("init") for call in calls)


def _receivers(calls: list[ast.Call]) -> set[str]:
    """``params`` of ``params.append(...)``."""
    return {
        one.func.value.id
        for one in calls
        if isinstance(one.func, ast.Attribute) and one.func.attr == "append" and isinstance(one.func.value, ast.Name)
    }


def _fills(source: Source, call: ast.Call) -> bool:
    module, _, name = source.resolve(dotted(call.func) or "").rpartition(".")
    return module.endswith(("jax.random", "random", "initializers")) or (
        module in ("jax.numpy", "jnp") and name in ("zeros", "ones", "full", "eye", "identity", "arange", "linspace")
    )


def _seen_again(program: Program) -> bool:
    """A program that ran once belongs to a shape or a step that does not come again."""
    return len(program.calls) >= 2


def _computes(lines: CellLines, program: Program, site: SourceSite) -> bool:
    name = program.name.removeprefix("jit_").lstrip("_")
    if name in _SET_UP or name in _TAKING_PARTS:
        return False
    if name not in _INDEX_ARITHMETIC:
        return True
    source = lines.source(site)
    node = source.statement(site.line) if source is not None else None
    return node is None or not any(isinstance(one, ast.Subscript) for one in ast.walk(node))


def _candidates(lines: CellLines, program: Program, stack: Stack) -> Iterator[Place]:
    """Every function and loop body around an operation that is run repeatedly, innermost first."""
    repeats = list(lines.repeats(stack))
    if repeats:
        outermost = repeats[-1]
        if outermost.loop.kind == "comprehension" and sum(call.stack == stack for call in program.calls) < FEWEST_ITEMS:
            return
        header = _at(stack[outermost.position], outermost.loop.first)
        for position in range(len(stack) - 1, outermost.position, -1):
            yield _function_place(stack, position, header)
        for repeat in repeats:
            frame = stack[repeat.position]
            loop = _at(frame, repeat.loop.first)
            yield Place(("loop", loop), None, repeat.position, header, loop)
        return
    unknown = any(lines.source(site) is None for site in stack)
    again = sum(call.stack == stack for call in program.calls) >= REPETITIONS
    if unknown and again and stack[-1].function is not None:
        yield _function_place(stack, len(stack) - 1, None)


def _function_place(stack: Stack, position: int, loop: SourceSite | None) -> Place:
    site = stack[position]
    caller = stack[position - 1] if position else None
    key = ("function", site.cell, site.file, site.function, caller)
    return Place(key, site.function, position, loop, caller)


def _at(frame: SourceSite, line: int) -> SourceSite:
    return SourceSite(line, frame.cell, frame.file, frame.function)


def _finding(lines: CellLines, places: list[Place]) -> Finding:
    sites: dict[SourceSite, dict[int, Program]] = {}
    for place in places:
        for site, programs in place.sites.items():
            sites.setdefault(site, {}).update(programs)
    ordered = sorted(sites, key=lambda site: (site.cell or 0, site.file or "", site.line))
    programs = {key: one for found in sites.values() for key, one in found.items()}
    names = list(dict.fromkeys(place.function for place in places if place.function is not None))
    callers = list(dict.fromkeys(place.caller for place in places if place.caller is not None))
    loop = places[0].loop or (callers[0] if callers else None)
    related = [site for site in (*callers, *ordered[1:]) if site != ordered[0]]
    count = len(programs)
    seconds = sum(one.seconds for program in programs.values() for one in program.compiles)
    compiled = f" Compiling them took {seconds_text(seconds)}." if seconds >= 0.05 else ""
    operations = ", ".join(dict.fromkeys(f"`{one.name}`" for one in list(programs.values())[:5]))
    if names:
        what = " and ".join(f"`{name}`" for name in names[:3])
        runs = "runs" if len(names) == 1 else "run"
        title = f"{what} {runs} outside jit: {quantity(count, 'separate program')} at each step of the loop."
        fix = f"Put @jax.jit on {what}, so that each step is one program."
        gradient = _gradient(lines, names, callers)
        if gradient is not None:
            fix = f"Make `jax.jit({gradient})` once, before the loop, and call that: each step is then one program."
    else:
        where = f"The loop at line {loop.line}" if loop is not None else "This loop"
        title = f"{where} computes outside jit: {quantity(count, 'separate program')} at each step."
        fix = "Put the computation of one step into a function with @jax.jit, so that each step is one program."
    return Finding(
        kind="host.op_by_op",
        severity="warning",
        title=title,
        detail=f"Every operation ({operations}, …) is dispatched from Python by itself and writes its result to memory.{compiled}",
        fix=fix,
        site=ordered[0],
        related=tuple(dict.fromkeys(related)),
        count=count,
        seconds=seconds or None,
        facts={"functions": ", ".join(names), "programs": count, "lines": ", ".join(str(one.line) for one in ordered)},
    )


def _gradient(lines: CellLines, names: list[str], callers: list[SourceSite]) -> str | None:
    """``jax.grad(loss_fn)`` as written, where it is by this that the loop runs the function."""
    for site in callers:
        source = lines.source(site)
        for call in source.calls(site.line) if source is not None else ():
            transforms = call.callee.rpartition(".")[2] in (
                "grad",
                "value_and_grad",
                "vmap",
                "jacfwd",
                "jacrev",
                "hessian",
            )
            if transforms and call.arguments and call.arguments[0] in names:
                return ast.unparse(call.node)
    return None
