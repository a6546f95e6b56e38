"""What the TPU compiler says of a program: its plan of the memory, its estimate of the time, or why there is neither.

Plain data between the compiler, the passes and the report. Bytes are per device; ``None`` means "not known", never
zero. Stacks are as everywhere, outermost first; as they come from the compiler they hold every frame, with full file
names, and ``compiler.sites`` turns them into the user's own lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tpumagic.events import Stack


@dataclass(frozen=True)
class Target:
    """A TPU to compile for. name: Google's spelling, ``v5e-8``. chip: ``v5e``. devices: as JAX counts them, for all
    chips. hbm_bytes: what the compiler lets a program use on each device."""

    name: str
    chip: str
    chips: int
    devices: int
    hbm_bytes: int


@dataclass(frozen=True)
class Buffer:
    """Memory that a program takes on each device.

    bytes: as laid out, with padding; logical_bytes: its elements alone. name: of an argument or result, as the user
    writes it (``params['w']``, ``result[0]``); None for temporaries. stack: of the operation that makes it. operation:
    what that does, in JAX's words (``dot_general``). tiling: of its layout, as the compiler writes it (``T(8,128)``).
    residual: made in the forward pass and kept for the backward pass. repeated: made by widening something smaller.
    x64: half of a 64-bit array. donated: an argument whose memory a result takes over. count: so many alike of the same
    line, whose sizes are added up. trips: of the loop that stacks it, one slice a trip; None if no loop does.
    """

    kind: Literal["argument", "output", "temporary", "constant"]
    bytes: int
    logical_bytes: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    name: str | None = None
    stack: Stack = ()
    operation: str | None = None
    tiling: str | None = None
    residual: bool = False
    repeated: bool = False
    x64: bool = False
    donated: bool = False
    count: int = 1
    trips: int | None = None


@dataclass(frozen=True)
class Donation:
    """An argument of the same shape and type as a result, whose memory that could have used. result: its place."""

    argument: str
    result: int
    bytes: int


@dataclass(frozen=True)
class Communication:
    """A collective of the compiled program. kind: as in HLO (``all-gather``). bytes: of its result on one device.
    trips: how often it runs, None if its loop does not say. group: devices that take part together. whole: of an
    all-gather, each device gets the whole logical array; resliced: and keeps only its part of it."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    trips: int | None = 1
    group: int | None = None
    stack: Stack = ()
    whole: bool = False
    resliced: bool = False


@dataclass(frozen=True)
class SpecialCall:
    """An operation that is no ordinary arithmetic: a custom call (``tpu_custom_call`` is a Pallas kernel) or a host
    callback (kind ``host``). name: of the kernel or call."""

    kind: Literal["custom", "host", "x64"]
    name: str
    count: int = 1
    stack: Stack = ()


@dataclass(frozen=True)
class Product:
    """Matrix products and convolutions of one line. dtype: of what the user multiplies. precision: asked for
    (``default``, ``high``, ``highest``). bf16: the TPU multiplies in bfloat16 although dtype is float32."""

    dtype: str
    precision: str
    bf16: bool
    count: int = 1
    stack: Stack = ()
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The compiler's plan of one program for one device of a target.

    needed_bytes: what it takes at its peak by the compiler's buffer assignment: arguments, results, temporaries and
    constants, those that share memory counted once. fits: needed is not more than available. temp_bytes:
    needed_bytes without arguments, results and constants. alias_bytes: results in donated memory. reconstructed_bytes:
    peak of ``timeline``, somewhat less than needed_bytes where the assignment leaves gaps. holders: what is alive at
    the peak, largest first. timeline: bytes in use over the program's schedule, at most 240 points of (position from 0
    to 1, bytes). peak_at: position of the peak. padded: arrays that take more than their elements, most waste first.
    rematerialized: operations that the compiler repeats to save memory. seconds: until the
    plan was there. worked_out: needed_bytes is no assignment of the compiler's: it was worked out from the text of a
    program that is compiled already, usually within 3 %. What is in VMEM alone does not count.
    """

    fits: bool
    needed_bytes: int
    available_bytes: int
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    constant_bytes: int | None = None
    alias_bytes: int | None = None
    reconstructed_bytes: int | None = None
    holders: tuple[Buffer, ...] = ()
    timeline: tuple[tuple[float, int], ...] = ()
    peak_at: float | None = None
    padded: tuple[Buffer, ...] = ()
    donations: tuple[Donation, ...] = ()
    rematerialized: int = 0
    communications: tuple[Communication, ...] = ()
    calls: tuple[SpecialCall, ...] = ()
    products: tuple[Product, ...] = ()
    seconds: float | None = None
    worked_out: bool = False


@dataclass(frozen=True)
class LineCost:
    """Estimated time of the operations of one line, all trips of its loops together. band: the factor within which the
    estimate usually lies. share: of the program's total."""

    seconds: float
    share: float
    band: float
    stack: Stack = ()
    operation: str | None = None
    bound: Literal["mxu", "hbm", "vpu"] | None = None


@dataclass(frozen=True)
class NotCounted:
    """An operation for whose time there is no estimate worth showing; trips: how often it runs, None if not known."""

    operation: str
    count: int = 1
    trips: int | None = None
    stack: Stack = ()


@dataclass(frozen=True)
class Cost:
    """Estimated device time of one run of a program: rule R over the compiler's cycle counts and the bytes.

    seconds: None where what is not counted may be most of it. band: as in LineCost. mxu_seconds: the same
    multiplications at the chip's peak; hbm_seconds: the same bytes at its bandwidth; both None where not known.
    bound: what it is nearest to. loops_known: every loop's trip count is known.
    """

    seconds: float | None
    band: float
    bound: Literal["mxu", "hbm", "vpu"] | None = None
    mxu_seconds: float | None = None
    hbm_seconds: float | None = None
    lines: tuple[LineCost, ...] = ()
    not_counted: tuple[NotCounted, ...] = ()
    loops_known: bool = True
    compile_s: float | None = None


@dataclass(frozen=True)
class CompilerError:
    """Why the compiler refused a program. kind: ``hbm``, ``vmem`` and ``smem`` are memory; ``unsupported`` an operation
    or type that the chip or its compiler has not; ``other``: anything else. needed_bytes, available_bytes: of memory.
    message: the compiler's own words, shortened. operation: which one, as far as it says. stack: where."""

    kind: Literal["hbm", "vmem", "smem", "unsupported", "other"]
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    operation: str | None = None
    stack: Stack = ()


@dataclass(frozen=True)
class Remedy:
    """One change to a program and what the compiler needs with it. name: ``donation``, ``checkpoint``, ``sharding`` or
    ``precision``. change: in words, for this program. fits, needed_bytes: None if that could not be compiled; why then
    says it."""

    name: Literal["donation", "checkpoint", "sharding", "precision"]
    change: str
    fits: bool | None = None
    needed_bytes: int | None = None
    why: str | None = None


Status = Literal["planned", "refused", "unavailable"]
Cause = Literal["compiler", "devices", "lowering", "interrupted", "memory", "size"]


@dataclass(frozen=True)
class Answer:
    """The compiler's answer for one program and target.

    status: ``planned``: there is a plan, whether it fits or not; ``refused``: the program cannot be compiled, error
    says why (a plan may be there as well); ``unavailable``: nobody could ask, why says it in one sentence. cost: None
    until the whole compile is done, or if it is not wanted. compiler: version of libtpu. cached: from the disk.
    pending: the cost is still on its way.
    remedies: what other ways of writing the program come to, measured by a compile of each. cause: of ``unavailable``:
    there is no working compiler, the program runs on another number of devices than the target has, JAX could not lower
    it, the user interrupted, this machine has too little memory free, or the program is too large to be sent.
    """

    target: Target
    status: Status
    plan: Plan | None = None
    cost: Cost | None = None
    error: CompilerError | None = None
    why: str | None = None
    compiler: str | None = None
    cached: bool = False
    pending: bool = False
    remedies: tuple[Remedy, ...] = ()
    cause: Cause = "compiler"


@dataclass(frozen=True)
class Lowered:
    """A program ready for the TPU compiler. stablehlo: MLIR bytecode with source locations. devices: it runs on so many
    (partitions). options: the user's compiler options. arguments:
    names of its parameters in order."""

    name: str
    stablehlo: bytes = field(repr=False)
    devices: int = 1
    options: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
