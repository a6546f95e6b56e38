"""What a text of JAX, PyTorch/XLA or libtpu says about the TPU and its software."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpumagic.events import Backend, Host, SourceSite
from tpumagic.findings import Finding, Severity

_API_VERSIONS = re.compile(r"plugin PJRT API version \(?(\d+\.\d+)\)? and framework PJRT API version \(?(\d+\.\d+)\)?")
_API_SIZE = re.compile(r"Unexpected (PJRT_\w+) size: expected (\d+), got (\d+)")
_API_BUILT = re.compile(r"plugin is built with PJRT API version (\d+\.\d+)")
_JAXLIB = re.compile(
    r"jaxlib (?:is )?version (?P<jaxlib>[\d.]*\d)[^/]*?"
    r"(?:incompatible with jax version|version of jax requires version >=) ?(?P<jax>[\d.]*\d)"
)
_PLUGIN = re.compile(r"Unable to initialize backend '(\w+)'")
_PID = re.compile(r"already in use by process with pid (\d+)")
_OTHER_USER = re.compile(r"TPU is already in use by another process|libtpu\.so already in used? by another process")
_NODE = r"(?P<node>/dev/(?:accel|vfio)[\w/]*)"
_BUSY = re.compile(_NODE + r"[^/]{0,80}?Device or resource busy")
_CLOSED = re.compile(_NODE + r"[^/]{0,80}?(?P<why>No such file or directory|Permission denied|Operation not permitted)")
_UNREADABLE = re.compile(
    r"read permission on path '?" + _NODE + r"|device path '?(?P<skipped>/dev/[\w/]+)'? with no read"
)
_LOCK_FILE = "libtpu multi-process lockfile"
_NO_LIBRARY = re.compile(
    r"module 'libtpu' has no attribute '(?P<attribute>\w+)'|(?P<file>[^\s:'\"]*libtpu\.so)['\"]?: "
    r"(?P<why>file too short|invalid ELF header|cannot read file data|undefined symbol: \w+)"
)
_METADATA = re.compile(
    r"Failed to get TPU metadata|computeMetadata/v1/instance/attributes/"
    r"(?:accelerator-type|agent-worker-number|worker-network-endpoints|tpu-env)"
)
_NOT_JOINED = re.compile(
    r"(?:DEADLINE_EXCEEDED|timed out).*?(?:RegisterTask|[Cc]oordination ?[Ss]ervice|[Bb]arrier)"
    r"|(?:RegisterTask|[Cc]oordination ?[Ss]ervice|[Bb]arrier).*?(?:DEADLINE_EXCEEDED|timed out)",
    re.DOTALL,
)
_ADDRESSES = re.compile(r"Expected (\d+) worker addresses, got (\d+)")
_BEFORE_REASON = re.compile(r"^.*?(?:initialize backend '\w+'|'tpu' failed to initialize): ", re.DOTALL)
_AFTER_REASON = re.compile(r"\s*\((?:you may need to|set JAX_PLATFORMS).*$|\.?\. Available backends are.*$", re.DOTALL)
_STATUS = re.compile(r"^(?:[A-Z][A-Z_]+: )+")


@dataclass(frozen=True)
class Cause:
    """What a text means. kind: name within the family ``env``."""

    kind: str
    title: str
    detail: str
    fix: str
    facts: dict[str, object]

    def finding(self, severity: Severity, site: SourceSite | None, related: tuple[SourceSite, ...] = ()) -> Finding:
        """The cause at a line."""
        return Finding(
            f"env.{self.kind}",
            severity,
            self.title,
            self.detail,
            self.fix,
            site=site,
            related=related,
            facts=self.facts,
        )


def cause(text: str, host: Host, backends: Sequence[Backend]) -> Cause | None:
    """What the text says beyond that there is no TPU; None if nothing."""
    return (
        _versions(text, backends)
        or _replaced(text, host)
        or _in_use(text, host)
        or _lock(text, host)
        or _node(text, host)
        or _addresses(text, host)
        or _metadata(text)
        or _not_joined(text, host)
    )


def promised(host: Host) -> str | None:
    """What the machine says of its TPU (``v5litepod-8``), None if it is no TPU machine by its own word.

    Colab sets COLAB_TPU_1VM everywhere, with the value 1 only on a TPU.
    """
    variables = dict(host.variables)
    if host.accelerator_type:
        return host.accelerator_type
    if host.chip_count:
        return f"{host.chip_count} chip{'' if host.chip_count == 1 else 's'} on the PCI bus"
    if variables.get("COLAB_TPU_1VM") == "1":
        return "COLAB_TPU_1VM=1"
    return "ISTPUVM=1" if variables.get("ISTPUVM") == "1" else None


def reason(text: str) -> str:
    """JAX's or libtpu's own words, without what stands around them."""
    text = _AFTER_REASON.sub("", _BEFORE_REASON.sub("", " ".join(text.split())))
    return _STATUS.sub("", text).rstrip(".")


def install(backends: Sequence[Backend]) -> str:
    """The command that brings JAX together with the libtpu that it wants."""
    version = next((backend.version for backend in backends if backend.framework == "jax"), None)
    return f"Run pip install 'jax[tpu]{'==' + version if version else ''}'"


def _versions(text: str, backends: Sequence[Backend]) -> Cause | None:
    frameworks = {backend.framework for backend in backends}
    plugin_match = _PLUGIN.search(text)
    plugin = plugin_match[1] if plugin_match and plugin_match[1] != "tpu" else "libtpu"
    if (match := _JAXLIB.search(text)) is not None:
        title = f"jaxlib {match['jaxlib']} and jax {match['jax']} do not fit each other."
        fix = "Run pip install -U jax jaxlib (on a TPU: 'jax[tpu]'), then restart the kernel."
        return Cause("version_mismatch", title, "", fix, {"jaxlib": match["jaxlib"], "jax": match["jax"]})
    facts: dict[str, object]
    if (match := _API_VERSIONS.search(text)) is not None:
        older = _number(match[1]) < _number(match[2])
        title = f"{plugin} and the framework do not fit: {plugin} speaks PJRT API {match[1]}, the framework {match[2]}."
        facts = {"plugin": plugin, "plugin_api": match[1], "framework_api": match[2]}
    elif (match := _API_SIZE.search(text)) is not None:
        built = _API_BUILT.search(text)
        older = int(match[2]) < int(match[3])
        with_version = f" (PJRT API {built[1]})" if built else ""
        title = (
            f"{plugin} and the framework do not fit: {plugin}{with_version} expects {match[2]} bytes of {match[1]}, the "
            f"framework gives {match[3]}."
        )
        facts = {"plugin": plugin, "plugin_api": built[1] if built else None, "structure": match[1]}
    elif "_XLAC" in text and "undefined symbol" in text:
        title = "torch and torch_xla do not fit each other: torch_xla was built for another torch."
        fix = (
            "Install the same major and minor version of both (torch 2.9 with torch_xla 2.9), then restart the kernel."
        )
        return Cause("version_mismatch", title, "", fix, {"packages": "torch, torch_xla"})
    else:
        return None
    detail = f"{plugin} is the {'older' if older else 'newer'} of the two."
    if {"jax", "torch_xla"} <= frameworks:
        fix = (
            "JAX and PyTorch/XLA are both loaded and share one libtpu: restart the kernel and import only one of them."
        )
    elif plugin != "libtpu":
        fix = f"Install the version of the {plugin} plugin that this JAX asks for, then restart the kernel."
    elif "torch_xla" in frameworks:
        fix = "Install the libtpu that torch_xla asks for: pip install 'torch_xla[tpu]', then restart the kernel."
    else:
        fix = f"{install(backends)}, which brings the libtpu that it asks for, then restart the kernel."
    return Cause("version_mismatch", title, detail, fix, facts)


def _replaced(text: str, host: Host) -> Cause | None:
    """The package libtpu is there, and what it holds is not libtpu."""
    match = _NO_LIBRARY.search(text)
    if match is None:
        return None
    version = host.libtpu_version
    wanted = f"'libtpu=={version}'" if version else "libtpu"
    facts: dict[str, object] = {"libtpu": version, "file": match["file"], "why": match["why"] or match["attribute"]}
    if match["attribute"]:
        title = f"The installed libtpu is not libtpu any more: it has no {match['attribute']}."
        detail = "Another package that writes the same folder (libtpu-nightly) has replaced it, or removed its files."
    else:
        title = f"{match['file']} is no whole library: {match['why']}."
        detail = "Its installation or download was cut short, or something else has taken its place."
    fix = f"Run pip install --force-reinstall --no-deps {wanted}, then restart the kernel."
    return Cause("libtpu_replaced", title, detail, fix, facts)


def _addresses(text: str, host: Host) -> Cause | None:
    """PyTorch/XLA counts the addresses of a variable that this host sets to something else."""
    match = _ADDRESSES.search(text)
    value = dict(host.variables).get("TPU_PROCESS_ADDRESSES")
    if match is None or value is None:
        return None
    return Cause(
        "old_snippet",
        f"TPU_PROCESS_ADDRESSES={value} gives {match[2]} address where PyTorch/XLA wants {match[1]}.",
        "This host's image sets it to keep libtpu from asking a metadata server.",
        'Restart the kernel and run this first: import os; os.environ.pop("TPU_PROCESS_ADDRESSES", None)',
        {"name": "TPU_PROCESS_ADDRESSES", "value": value, "wanted": int(match[1]), "given": int(match[2])},
    )


def _metadata(text: str) -> Cause | None:
    """Only what is asked for a TPU: credentials come from the same server."""
    if not _METADATA.search(text):
        return None
    return Cause(
        "metadata_unreachable",
        "The metadata server did not tell what TPU this is.",
        "Outside Google Cloud there is none, and some containers cannot reach it.",
        "Restart the kernel and say it yourself before the first import: import os; "
        'os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_ACCELERATOR_TYPE=…, TPU_WORKER_ID="0", '
        'TPU_WORKER_HOSTNAMES="localhost")',
        {"reason": reason(text)[:200]},
    )


def _not_joined(text: str, host: Host) -> Cause | None:
    """A start of several hosts that one of them missed."""
    count = host.worker_count
    if not _NOT_JOINED.search(text) or count is None or count < 2:
        return None
    return Cause(
        "multihost_wait",
        f"This is worker {'—' if host.worker is None else host.worker} of {count}, and the others did not start in time.",
        "A slice starts as a whole: every host has to run the same program.",
        f"Run the same code on all {count} hosts at once, then restart the kernel here.",
        {"workers": count, "worker": host.worker, "accelerator": host.accelerator_type},
    )


def _in_use(text: str, host: Host) -> Cause | None:
    pid, busy = _PID.search(text), _BUSY.search(text)
    if pid is None and busy is None and not _OTHER_USER.search(text):
        return None
    holders = dict(host.holders)
    number = int(pid[1]) if pid else next(iter(holders)) if len(holders) == 1 else None
    name = holders.get(number) if number is not None else None
    where = f" ({busy['node']})" if busy else ""
    look = f"ps -fp {number}" if number else f"sudo lsof -w {busy['node'] if busy else '/dev/accel* /dev/vfio/*'}"
    detail = "Most often it is the kernel of another notebook."
    fix = f"Shut that kernel down (find the process with: {look}), then restart this one."
    if name is not None:
        who, detail = name, ""
        fix = f"Shut it down (kill {number}), then restart this kernel."
    elif number is not None:
        who = f"process {number}"
    elif host.container:
        who = "another container or a process outside this one"
        detail = "No process that can be seen from here has it open."
        fix = f"On the machine itself, find it with: {look}; stop it, then restart this kernel."
    else:
        who = "another process"
    return Cause(
        "tpu_in_use",
        f"The TPU is held by {who}{where}: only one process can use it at a time.",
        detail,
        fix,
        {"pid": number, "node": busy["node"] if busy else None, "chips": host.chip_count, "holder": name},
    )


def _lock(text: str, host: Host) -> Cause | None:
    if _LOCK_FILE not in text:
        return None
    if promised(host):
        return Cause(
            "tpu_in_use",
            "libtpu's lock /tmp/libtpu_lockfile is taken or belongs to another user: the TPU may be in use.",
            "",
            "Shut down other kernels that use the TPU (find them with: sudo lsof -w /dev/accel* /dev/vfio/*) and restart "
            "this one; remove the lock file only when no process is left.",
            {"lock": "/tmp/libtpu_lockfile", "chips": host.chip_count},  # noqa: S108 (libtpu chose the place)
        )
    return Cause(
        "compile_only_lock",
        "Another process has libtpu loaded, and its lock lets in one process at a time, even without a TPU.",
        "",
        "Wait until the other compilation has ended and try again; do not remove the lock file while it runs.",
        {"lock": "/tmp/libtpu_lockfile"},  # noqa: S108
    )


def _node(text: str, host: Host) -> Cause | None:
    closed, unreadable = _CLOSED.search(text), _UNREADABLE.search(text)
    if closed is None and unreadable is None:
        return None
    if closed is not None:
        node, why = closed["node"], closed["why"]
    else:
        assert unreadable is not None
        node, why = unreadable["node"] or unreadable["skipped"], "Permission denied"
    return Cause(
        "no_device_node",
        f"The TPU's device node {node} cannot be opened: {why}.",
        "",
        _node_fix(node, why, host),
        {"node": node, "why": why},
    )


def _node_fix(node: str, why: str, host: Host) -> str:
    if host.kind in ("gke", "kubernetes"):
        chips = host.chip_count or "the number of chips"
        return f"Ask for the chips in the pod's container: resources: {{limits: {{google.com/tpu: {chips}}}}}."
    if host.container or why == "No such file or directory":
        passing = f"In a container, pass it: docker run --privileged …, or --device {node} for each of them"
        return f"{passing}; then restart the kernel."
    return f"Run sudo chmod a+rw {node} (in a container: docker run --privileged …), then restart the kernel."


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
