"""What the TPU compiler says of one program for one target, as the report's data.

Bytes are per device of the target. ``None`` means "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tpumagic.events import SourceSite


@dataclass(frozen=True)
class ReportedBuffer:
    """Memory that a program takes. name: of an argument or result as the user writes it, None for what the program
    makes. site: the line that makes it. operation: what that does there. logical_bytes: without padding. count: so many
    alike, whose sizes are added up. trips: of the loop that stacks it. The others as in ``plans.Buffer``."""

    name: str | None
    site: SourceSite | None
    bytes: int
    logical_bytes: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    kind: Literal["argument", "output", "temporary", "constant"] = "temporary"
    count: int = 1
    operation: str | None = None
    trips: int | None = None
    residual: bool = False
    donated: bool = False
    repeated: bool = False
    x64: bool = False


@dataclass(frozen=True)
class ReportedCollective:
    """Collectives of one kind and line. bytes: of their results on one device, each counted once; dtype and shape of the
    largest. count: so many in the program. runs: how often they run in one run of the program, None if a loop does not
    say. total_bytes: of all these runs, None as runs. group: devices that take part together."""

    kind: str
    site: SourceSite | None
    bytes: int
    dtype: str
    shape: tuple[int, ...] = ()
    count: int = 1
    runs: int | None = None
    total_bytes: int | None = None
    group: int | None = None
    whole: bool = False
    resliced: bool = False


@dataclass(frozen=True)
class ReportedCall:
    """Custom calls, host callbacks (``host``) or emulated 64-bit operations (``x64``) of one name and line."""

    kind: Literal["custom", "host", "x64"]
    name: str
    site: SourceSite | None = None
    count: int = 1


@dataclass(frozen=True)
class ReportedProduct:
    """Matrix products and convolutions of one line that the user wrote in dtype and the TPU multiplies in bfloat16."""

    dtype: str
    site: SourceSite | None = None
    precision: str = "default"
    count: int = 1


@dataclass(frozen=True)
class ReportedLineCost:
    """Estimated time of one line, all trips of its loops together. share: of the program's. band: as in the cost."""

    site: SourceSite | None
    estimate_s: float
    share: float
    band: float
    operation: str | None = None
    bound: Literal["mxu", "hbm", "vpu"] | None = None


@dataclass(frozen=True)
class ReportedNotCounted:
    """An operation for whose time there is no estimate. trips: how often it runs, None if not known."""

    operation: str
    site: SourceSite | None = None
    count: int = 1
    trips: int | None = None


@dataclass(frozen=True)
class ReportedCost:
    """Estimated device time of one run. estimate_s: None where what is not counted may be most of it. band: the factor
    within which the estimate usually lies. mxu_s, hbm_s: the same work at the chip's peak and at its bandwidth."""

    estimate_s: float | None
    band: float
    bound: Literal["mxu", "hbm", "vpu"] | None = None
    mxu_s: float | None = None
    hbm_s: float | None = None
    lines: tuple[ReportedLineCost, ...] = ()
    not_counted: tuple[ReportedNotCounted, ...] = ()
    loops_known: bool = True
    compile_s: float | None = None

    @property
    def share_of_peak(self) -> float | None:
        """Time at the limit it is nearest to, of the estimate; None where that is not known or more than all of it."""
        at_limit = {"mxu": self.mxu_s, "hbm": self.hbm_s}.get(self.bound or "")
        if at_limit is None or not self.estimate_s or at_limit > self.estimate_s:
            return None
        return at_limit / self.estimate_s


@dataclass(frozen=True)
class ReportedError:
    """Why the compiler refused the program; as ``plans.CompilerError``."""

    kind: Literal["hbm", "vmem", "smem", "unsupported", "other"]
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    operation: str | None = None
    site: SourceSite | None = None


@dataclass(frozen=True)
class ReportedRemedy:
    """One change to the program and what the compiler needs with it; as ``plans.Remedy``."""

    name: Literal["donation", "checkpoint", "sharding", "precision"]
    change: str
    fits: bool | None = None
    needed_bytes: int | None = None
    why: str | None = None


@dataclass(frozen=True)
class OmittedOfTarget:
    """How many more there were of each than the report has room for."""

    holders: int = 0
    padded: int = 0
    collectives: int = 0
    calls: int = 0
    bf16_products: int = 0
    lines: int = 0
    not_counted: int = 0
    remedies: int = 0


@dataclass(frozen=True)
class ReportedTarget:
    """The TPU compiler's answer for one program and target.

    status, why, cached, pending as in ``plans.Answer``. fits: None if there is no answer. timeline: bytes in use over
    the program's schedule, points of (position from 0 to 1, bytes). needed_is_estimate: needed_bytes is not the compiler's
    own figure. holders: what is alive at the peak, largest first.
    padded: most waste first. remat_count: operations that the compiler repeats to save memory.
    """

    name: str
    chips: int
    devices: int
    status: Literal["planned", "refused", "unavailable"]
    fits: bool | None = None
    needed_bytes: int | None = None
    needed_is_estimate: bool = False
    available_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    temp_bytes: int | None = None
    constant_bytes: int | None = None
    alias_bytes: int | None = None
    holders: tuple[ReportedBuffer, ...] = ()
    timeline: tuple[tuple[float, int], ...] = ()
    peak_at: float | None = None
    padded: tuple[ReportedBuffer, ...] = ()
    remat_count: int | None = None
    collectives: tuple[ReportedCollective, ...] = ()
    calls: tuple[ReportedCall, ...] = ()
    bf16_products: tuple[ReportedProduct, ...] = ()
    compiler: str | None = None
    cached: bool = False
    plan_s: float | None = None
    cost: ReportedCost | None = None
    pending: bool = False
    error: ReportedError | None = None
    why: str | None = None
    remedies: tuple[ReportedRemedy, ...] = ()
    omitted: OmittedOfTarget = field(default_factory=OmittedOfTarget)
