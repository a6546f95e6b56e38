"""The neutral vocabulary: what a backend tells about one cell, whatever the framework.

Everything here is plain data (strings, numbers, tuples), so that a record can be kept, compared and tested without a
framework and holds nothing of the user's alive. ``None`` always means "not known", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tpumagic.graph import Graph

if TYPE_CHECKING:
    from tpumagic.plans import Answer


@dataclass(frozen=True)
class SourceSite:
    """A line of the user's code: in a cell (``cell`` is its execution count) or in a file; lines count from 1."""

    line: int
    cell: int | None = None
    file: str | None = None
    function: str | None = None

    def __str__(self) -> str:
        if self.cell is not None:
            return f"In [{self.cell}] line {self.line}"
        if self.file is not None:
            return f"{self.file.rsplit('/', 1)[-1]} line {self.line}"
        return f"line {self.line}"


Stack = tuple[SourceSite, ...]
"""User frames only, outermost first; the last one is where the thing happened."""


@dataclass(frozen=True)
class Leaf:
    """One array of a call's arguments or results.

    path: as the user would write it, ``xb`` or ``batch['mask']``. dtype: NumPy's name (``float32``).
    sharding: a short text such as ``P('d') over (d=4)``; None for one device. identity: ``id`` of the array object at
    the time of the call, only good for comparing calls of the same cell.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False
    sharding: str | None = None
    devices: tuple[int, ...] = ()
    committed: bool | None = None
    origin: Literal["device", "host", "scalar"] = "device"
    bytes: int = 0
    identity: int | None = None


@dataclass(frozen=True)
class StaticValue:
    """A static argument. key: equal for two values exactly when the framework treats them as the same."""

    name: str
    text: str
    type_name: str
    key: str
    by_identity: bool = False


@dataclass(frozen=True)
class Structure:
    """The nesting of an argument: kind is ``dict``, ``tuple``, ``leaf`` or a class name, keys name the children,
    aux is the text of what a class keeps beside its children (static fields)."""

    kind: str
    keys: tuple[str, ...] = ()
    aux: tuple[tuple[str, str], ...] = ()
    children: tuple[Structure, ...] = ()


@dataclass(frozen=True)
class FunctionId:
    """Which function of the user's. code_key is equal for equal source; identity is ``id`` of the function object
    (only good within a process); closure lists captured names with the text of their values."""

    name: str
    code_key: str
    identity: int
    definition: SourceSite | None = None
    closure: tuple[tuple[str, str], ...] = ()
    is_lambda: bool = False
    wrapper: str | None = None


@dataclass(frozen=True)
class Signature:
    """Everything on which a framework decides whether a call needs a new program."""

    function: FunctionId
    leaves: tuple[Leaf, ...]
    structure: tuple[tuple[str, Structure], ...]
    statics: tuple[StaticValue, ...] = ()
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    context: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    transform: str | None = None
    site: SourceSite | None = None

    def __str__(self) -> str:
        """``step(w: float32[8], xb: float32[32,8], n=3)``; long argument lists are cut after eight."""
        parts = [f"{leaf.path}: {leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in self.leaves[:8]]
        parts += [f"{static.name}={static.text}" for static in self.statics[:4]]
        more = len(self.leaves) + len(self.statics) - len(parts)
        return f"{self.function.name}({', '.join(parts)}{f', … {more} more' if more > 0 else ''})"


@dataclass(frozen=True)
class Compile:
    """One compilation of a program in this cell.

    seconds is None where the framework did not tell. cache: the persistent cache's answer, None if it was not asked
    (it is off). cache_stored: whether the result was written to it. earlier: signatures of the same function that
    were known before this one, oldest first; the last is the previous call's.
    """

    signature: Signature | None
    stack: Stack
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    cache: Literal["hit", "miss"] | None = None
    cache_stored: bool | None = None
    earlier: tuple[Signature, ...] = ()
    evicted: bool = False

    @property
    def seconds(self) -> float:
        """Time from call to executable: trace + lower + compile, as far as known."""
        return (self.trace_s or 0.0) + (self.lower_s or 0.0) + (self.compile_s or 0.0)


@dataclass(frozen=True)
class ProgramMemory:
    """What the compiler set aside, per device, in bytes."""

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    alias_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Constant:
    """An array that became part of the program. name: the user's variable, None if it was not found."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    site: SourceSite | None = None


@dataclass(frozen=True)
class Collective:
    """Communication between devices. kind as in HLO (``all-gather``); shape and bytes of its result on one device;
    gathers_whole: the result is the whole logical array; resliced: and then each device keeps only its part of it."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    site: SourceSite | None = None
    gathers_whole: bool = False
    resliced: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a program that went through Python and so was seen. sequence orders the calls of a cell."""

    stack: Stack
    sequence: int
    inputs: tuple[Leaf, ...] = ()
    outputs: tuple[int | None, ...] = ()
    donated: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """One XLA program that the cell compiled or ran.

    kind: ``jit`` (the user asked for it), ``eager`` (one operation outside jit), ``aot`` (compiled ahead of time).
    calls: those that were seen; where calls_complete is False there may have been more, since frameworks answer
    repeated calls without Python. outside: made by no cell (widget callback, background task). graph: what it
    computes, None if it could not be read. donated: indices into inputs. partitioned: whether the devices do different
    parts of the work; False if each of several devices does all of it, None if not known or on one device. compile_only:
    made for devices that are not there. answers: of the TPU compiler, one for each target; for a program made for a TPU,
    there or not, its own compiler's.
    """

    name: str
    kind: Literal["jit", "eager", "aot"]
    stack: Stack = ()
    definition: SourceSite | None = None
    thread: str | None = None
    signature: Signature | None = None
    compiles: tuple[Compile, ...] = ()
    calls: tuple[Call, ...] = ()
    calls_complete: bool = False
    inputs: tuple[Leaf, ...] = ()
    outputs: tuple[Leaf, ...] = ()
    donated: tuple[int, ...] = ()
    constants: tuple[Constant, ...] = ()
    memory: ProgramMemory | None = None
    graph: Graph | None = None
    devices: tuple[int, ...] = ()
    collectives: tuple[Collective, ...] = ()
    outside: bool = False
    partitioned: bool | None = None
    compile_only: bool = False
    answers: tuple[Answer, ...] = ()

    @property
    def site(self) -> SourceSite | None:
        """The line of the call."""
        return self.stack[-1] if self.stack else None


@dataclass(frozen=True)
class Transfer:
    """Data that crossed between host and device.

    how: ``argument`` (a host array given to a program), ``read`` (float(), print, an ``if``), ``wait``
    (block_until_ready and its like: no data, but the host waits), ``convert`` (jnp.asarray of a host array).
    name: the user's variable, ``loss``. identity as in Leaf. count: how often the same line did it, where the later
    times were only counted (the first few are Transfers of their own with count 1).
    """

    direction: Literal["to_device", "to_host"]
    how: Literal["argument", "read", "wait", "convert"]
    stack: Stack
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    name: str | None = None
    identity: int | None = None
    explicit: bool = False
    count: int = 1


@dataclass(frozen=True)
class Conversion:
    """A 64-bit value that became 32-bit. requested: the user asked for the 64-bit type by name. lost: one value before
    and after where a value changed, None where none changed or the values were not looked at."""

    stack: Stack
    old_dtype: str
    new_dtype: str
    shape: tuple[int, ...]
    requested: bool
    lost: tuple[str, str] | None = None
    name: str | None = None


@dataclass(frozen=True)
class EnvironmentSet:
    """An environment variable that the cell set to a new value. started: the framework's backend was running already.
    imported: the frameworks that had been imported by then, since some variables are read at import."""

    name: str
    value: str
    stack: Stack
    started: bool
    imported: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """The exception that ended the cell. facts: what the backend could read from the live objects (name -> text):
    ``deleted`` the variables whose buffers are gone, ``donated_by`` program, ``donated_at`` site,
    ``argument``/``type_name``/``function`` of an unhashable static."""

    type_name: str
    message: str
    stack: Stack
    facts: tuple[tuple[str, str], ...] = ()


Doing = Literal["host", "trace", "compile", "wait", "dispatch"]
"""What a thread does: ``host`` is the user's own Python, ``wait`` is for the device."""


@dataclass(frozen=True)
class LineTime:
    """Sampled time of one line. stack: user frames. idle_s: of these seconds, those in which the device was seen to have
    nothing to do; None where that could not be asked."""

    stack: Stack
    doing: Doing
    seconds: float
    idle_s: float | None = None


@dataclass(frozen=True)
class LiveArray:
    """A device array alive after the cell. names: every path that leads to it from the user's namespace
    (``params['w']``, ``Out[3]``, ``_``), the first is the best; empty if none was found. traceback: kept only by the
    frames of the last exception, then the name is the local variable's. new: made in this cell. site: the line that
    showed it, for an array kept by ``Out[n]``; the line of the frame, for one kept by the traceback."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    sharding: str | None = None
    devices: tuple[int, ...] = ()
    traceback: bool = False
    new: bool = False
    site: SourceSite | None = None


@dataclass(frozen=True)
class MemorySample:
    """What one device was seen to do while the cell ran. at_s: seconds since the cell's start. device: its number in
    this process. duty_cycle_percent: share of the last seconds in which it was busy; tensorcore_percent: of its matrix
    units' peak. None where nobody told."""

    at_s: float
    device: int
    bytes_in_use: int | None = None
    limit_bytes: int | None = None
    duty_cycle_percent: float | None = None
    tensorcore_percent: float | None = None


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes per device as the device tells them (None on CPU). peak is the process's high-water mark; cell_peak the
    same if it rose during this cell, else None. live_bytes: sum over live arrays, before and after the cell. samples:
    by time, then device; empty for a short cell."""

    limit_bytes: int | None = None
    peak_bytes: int | None = None
    cell_peak_bytes: int | None = None
    live_before_bytes: int | None = None
    live_after_bytes: int | None = None
    live: tuple[LiveArray, ...] = ()
    samples: tuple[MemorySample, ...] = ()


@dataclass(frozen=True)
class Backend:
    """What a framework says of itself, asked without starting it.

    platform: ``tpu``, ``cpu``, ``gpu`` or None when not started. fallback: why it is not on TPU, in its own words.
    settings: those on which findings depend (``jax_enable_x64``, ``jax_compilation_cache_dir``, ...).
    started_here: it was started by this cell, None if that is not known.
    """

    framework: str
    version: str
    platform: str | None = None
    device_count: int | None = None
    device_kind: str | None = None
    fallback: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    started_here: bool | None = None


@dataclass(frozen=True)
class Host:
    """What the passes need to know of the machine; the full card is runtime.Environment.

    chip_count: chips on the PCI bus; usable_chip_count: those of them whose device node this process may open.
    worker_count: hosts that have to start together. variables: those that frameworks and TPU hosts read. holders:
    other processes that have chips open, by number, with their names. imported: frameworks of this process in the order
    of their import. keras_backend: what Keras runs on, None if it is not imported. libtpu_replaced: the libtpu.so that
    this process has loaded is no longer the one on the disk, None if it has loaded none.
    """

    kind: str = "unknown"
    accelerator_type: str | None = None
    chip_count: int | None = None
    usable_chip_count: int | None = None
    worker_count: int | None = None
    worker: int | None = None
    libtpu_version: str | None = None
    variables: tuple[tuple[str, str], ...] = ()
    holders: tuple[tuple[int, str], ...] = ()
    container: bool = False
    imported: tuple[str, ...] = ()
    keras_backend: str | None = None
    libtpu_replaced: bool | None = None


@dataclass(frozen=True)
class Unavailable:
    """Something that could not be observed, and why, in a user's words."""

    what: str
    why: str


@dataclass(frozen=True)
class SourceText:
    """Text of another cell or file of the user's in which sites of this record stand; first_line as in CellRecord."""

    text: str
    cell: int | None = None
    file: str | None = None
    first_line: int = 1


@dataclass(frozen=True)
class CellRecord:
    """All that is known of one run of one cell: the input of every pass.

    wall_s: the cell's own time. ready_s: until everything it dispatched was done, None if nobody waited.
    source_lines_start: the number of the first line of ``source`` (1 for a cell; for `# %%` cells of a file, the
    file's line). previous: live bytes after each earlier run of the same source, oldest first.
    """

    source: str = ""
    cell: int | None = None
    file: str | None = None
    source_lines_start: int = 1
    wall_s: float = 0.0
    ready_s: float | None = None
    programs: tuple[Program, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    conversions: tuple[Conversion, ...] = ()
    environment_sets: tuple[EnvironmentSet, ...] = ()
    lines: tuple[LineTime, ...] = ()
    failure: Failure | None = None
    memory: DeviceMemory = field(default_factory=DeviceMemory)
    backends: tuple[Backend, ...] = ()
    host: Host = field(default_factory=Host)
    jitted_names: frozenset[str] = frozenset()
    array_names: frozenset[str] = frozenset()
    previous_live_bytes: tuple[int, ...] = ()
    unavailable: tuple[Unavailable, ...] = ()
    other_sources: tuple[SourceText, ...] = ()
