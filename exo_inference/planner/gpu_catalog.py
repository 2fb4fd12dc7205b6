"""GPUs: the bundled catalogue, Exoscale's families and common names.

`planning.py` and its callers look GPUs up here. Memory is what the driver reports to the engine, not
the number on the box. Those that a user describes are read by `gpu_file.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.model.name_words import distance

GIB = 2**30
MIB = 2**20

RESERVED_MIB = 500
"""What driver and CUDA keep from the total of nvidia-smi: 350 to 770 MiB on the cards whose logs show
both, about the same on small and large cards."""


def kept_mib(vendor: str) -> tuple[int, int]:
    """Return what a driver keeps of a card's memory, and how much more or less that may be.

    AMD's keeps nothing: a 7900 XT has 20,464 MiB (https://github.com/lemonade-sdk/llamacpp-rocm/issues/31), of a 7900 XTX vLLM is told
    23.98 GiB (https://github.com/vllm-project/vllm/pull/36720), of a 7800 XT 15.98 (https://github.com/vllm-project/vllm/issues/27706).
    """
    return (0, 16) if vendor == "amd" else (RESERVED_MIB, 300)


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    Attributes:
        key: its name in the catalogue, or the user's.
        reported_bytes: total memory as the engine sees it (torch's mem_get_info).
        reported_error_bytes: how much more that can be: under Windows and WSL all that is on a card.
        reported_short_bytes: how much less; as much as more where None.
        bandwidth: memory bandwidth in bytes per second.
        tflops: dense, by number type (fp16, bf16, fp8, int8, fp4).
        capability: CUDA compute capability; None for another vendor's.
        gfx: AMD's name of its architecture, such as `gfx942`; empty where it is not known.
        native: number types it computes in hardware; of a CPU also those that the engine's kernels make fast.
        link_bandwidth: bytes per second per direction between GPUs of one machine, by NVLink if it has it.
        nvlink_size: GPUs that one NVLink joins: a bridge joins two, a switch all.
        pcie_bandwidth: the same between GPUs that NVLink does not join.
        host_bandwidth: bytes per second from the host's memory to one GPU.
        is_unified: CPU and GPU share the memory.
        processor: of the host, as its kernel names it; empty where it is not known.
        is_measured: bandwidth and arithmetic were measured with the engine, not stated by a maker.
        kernels: of a CPU: the instructions that exo-engine's compiled kernels use; empty where PyTorch computes.
        refusal: why no engine starts on it; empty where one does.
        note: which of several sizes a name without one was taken for; empty where it has one.
        marketing_gb: the memory that it is sold with; 0 of a user's own.
        usd_per_hour: price by number of GPUs, empty where none is known.
    """

    key: str
    name: str
    reported_bytes: int
    bandwidth: float
    vendor: str = "nvidia"
    reported_error_bytes: int = 0
    reported_short_bytes: int | None = None
    tflops: Mapping[str, float] = field(default_factory=dict)
    capability: float | None = None
    gfx: str = ""
    native: frozenset[str] = frozenset()
    link_bandwidth: float = 16e9
    has_nvlink: bool = False
    nvlink_size: int = 8
    pcie_bandwidth: float = 16e9
    host_bandwidth: float = 16e9
    is_unified: bool = False
    processor: str = ""
    is_measured: bool = False
    kernels: str = ""
    refusal: str = ""
    note: str = ""
    marketing_gb: int = 0
    family: str | None = None
    usd_per_hour: Mapping[int, float] = field(default_factory=dict)
    price_source: str = ""
    max_count: int = 8
    source: str = ""

    def with_memory(self, reported_bytes: int) -> Gpu:
        """Return the same GPU with the memory that a driver printed."""
        return replace(
            self, reported_bytes=reported_bytes, reported_error_bytes=0, reported_short_bytes=None
        )

    @property
    def shortfall_bytes(self) -> int:
        """How much less memory than `reported_bytes` the engine may see."""
        short = self.reported_short_bytes
        return self.reported_error_bytes if short is None else short

    def price(self, count: int) -> float | None:
        """Return US dollars per hour for `count` GPUs, or None where no price is known."""
        if count in self.usd_per_hour:
            return self.usd_per_hour[count]
        larger = [size for size in self.usd_per_hour if size >= count]
        if self.family is not None:  # families come in sizes: the next larger one must be taken
            return self.usd_per_hour[min(larger)] if larger else None
        one = self.usd_per_hour.get(1)
        return one * count if one is not None else None

    def is_linked(self, count: int) -> bool:
        """Whether NVLink joins `count` GPUs."""
        return self.has_nvlink and count <= self.nvlink_size

    def bandwidth_between(self, count: int) -> float:
        """Return bytes per second per direction between `count` GPUs that all talk."""
        if self.is_linked(count):
            return self.link_bandwidth
        own = self.pcie_bandwidth if self.has_nvlink else self.link_bandwidth
        return min(own, processor_lanes(self.processor) or own)

    @property
    def reads_peers(self) -> bool:
        """Whether such GPUs read one another's memory over PCIe, which NVIDIA's driver does not let GeForce cards do.

        Source: github.com/tinygrad/open-gpu-kernel-modules, a driver that was changed to allow it (2024-04).
        """
        return "geforce" not in self.name.lower()

    @property
    def has_multicast(self) -> bool:
        """Whether a switch joins such GPUs that multicasts: third-generation NVSwitch, Hopper and later.

        Source: NCCL's documentation of `NCCL_NVLS_ENABLE`. A bridge joins two cards, and multicasts not.
        """
        return self.has_nvlink and self.nvlink_size > 2 and (self.capability or 0) >= 9.0

    def supports(self, kind: str) -> bool:
        """Whether it computes that number type in hardware."""
        return kind in self.native


_LANES: tuple[tuple[str, float], ...] = (
    (r"epyc 7\w\w1\b", 16e9),
    (r"epyc 7\w\w[23]\b", 32e9),
    (r"xeon\(r\) (bronze|silver|gold|platinum) \d[12]\d\d", 16e9),
    (r"xeon\(r\) (bronze|silver|gold|platinum) \d3\d\dh", 16e9),
    (r"xeon\(r\) (bronze|silver|gold|platinum) \d3\d\d", 32e9),
)
"""Bytes per second and direction of 16 lanes, by the name that a processor's kernel prints: PCIe 3.0 of EPYC 7001 and of the first
two generations of Xeon Scalable, 4.0 of EPYC 7002 and 7003 and of the third. Source: ServeTheHome's lanes and bandwidth of a
decade, servethehome.com/?p=66847 (2023); anandtech.com/show/14694 for EPYC 7002; Intel's "H" of the third have 3.0."""


def processor_lanes(processor: str) -> float | None:
    """Return the bandwidth of 16 of a processor's PCIe lanes, where it is less than the newest cards have."""
    name = processor.lower()
    return next((rate for pattern, rate in _LANES if re.search(pattern, name)), None)


_COMMON_NAMES: Mapping[str, str] = {
    "a100": "a100-80gb-sxm", "a100-80": "a100-80gb-sxm", "a100-80gb": "a100-80gb-sxm",
    "a100-40": "a100-40gb-sxm", "a100-40gb": "a100-40gb-sxm", "a100-80gb-pcie": "a100-80gb-pcie",
    "h100": "h100-sxm", "h100-80gb": "h100-sxm", "h100-sxm5": "h100-sxm", "h100-80gb-hbm3": "h100-sxm",
    "h200-141gb": "h200", "v100": "v100-16gb", "rtx-pro-6000-blackwell": "rtx-pro-6000",
    "rtx-pro-6000-server": "rtx-pro-6000", "orin": "jetson-agx-orin-64gb", "thor": "jetson-thor",
    "v100-sxm2-16gb": "v100-16gb", "v100-sxm2-32gb": "v100-32gb", "a100-sxm4-80gb": "a100-80gb-sxm", "a100-sxm4-40gb": "a100-40gb-sxm", "l40s-48gb": "l40s",
}  # fmt: skip


def find_gpu(name: str, extra: Mapping[str, Gpu] | None = None) -> Gpu:
    """Return a GPU by catalogue name, Exoscale family or common name (`H100`, `RTX 4090`).

    Args:
        name: in any case, with or without the maker, with dashes, spaces or neither (`rtx4090`).
        extra: a user's own GPUs by name; they are preferred to the bundled ones.

    Raises:
        UsageError: there is no such GPU; the hint names the nearest.
    """
    wanted = _normalise(name)
    own = {_normalise(key): gpu for key, gpu in (extra or {}).items()}
    own = {**{_normalise(gpu.name): gpu for gpu in own.values()}, **own}
    if wanted in own:
        return own[wanted]
    if gpu := _named(wanted):
        return gpu if name == gpu.key else _with_sizes(gpu, wanted)
    if gpu := _sized(name, wanted):
        return gpu
    near = _nearest(wanted, sorted({*own, *_by_name()}))
    offered = [gpu.family for gpu in families() if gpu.family]
    others = sorted(key for key, gpu in load_gpus().items() if not gpu.family)
    known = f"Known: {', '.join([*own, *offered, *others])}."
    hint = f"Did you mean {' or '.join(near)}?" if near else known
    raise UsageError(f"there is no GPU {name!r} in the catalogue", hint=hint)


def _named(wanted: str) -> Gpu | None:
    """Return the GPU whose name, or one of them, this is in small letters."""
    return _by_name().get(wanted) or _by_joined_name().get(wanted.replace("-", ""))


_SIZE = re.compile(r"-(\d+)-?g(?:i?b)?(?=-|$)")
_FORM = re.compile(r"-(?:sxm|pcie|nvl)\d?(?=-|$)")
_AFTER_SIZE = re.compile(r"-(?:hbm|gddr)\w*$")


def _without_size(name: str) -> str:
    return _FORM.sub("", _SIZE.sub("", name))


@cache
def _by_series() -> Mapping[str, tuple[Gpu, ...]]:
    """Return the GPUs that differ by their size and form alone, by what they have in common (`a100`)."""
    found: dict[str, tuple[Gpu, ...]] = {}
    for key, gpu in load_gpus().items():
        series = _without_size(key)
        found[series] = (*found.get(series, ()), gpu)
    return found


def _sized(name: str, wanted: str) -> Gpu | None:
    """Return the GPU of a name that says a size (`RTX A5000 24GB`, `A100-PCIE-40GB`), or None.

    Raises:
        UsageError: the catalogue has such a GPU in other sizes alone.
    """
    said = _SIZE.search(wanted)
    if said is None:
        return None
    bare = _AFTER_SIZE.sub("", _SIZE.sub("", wanted))
    usual, form = _named(bare), _FORM.search(bare)
    series = _by_series().get(_without_size(bare), ())
    meant = [] if usual is None else [usual]
    meant += [gpu for gpu in series if form is None or form[0].rstrip("0123456789") in gpu.key]
    if not meant or (usual is None and form is None):
        return None
    fitting = [gpu for gpu in meant if _has_size(gpu, int(said[1]))]
    if fitting:
        return fitting[0]
    sizes: dict[int, list[str]] = {}
    for key in dict.fromkeys(gpu.key for gpu in (*meant, *series)):
        sizes.setdefault(load_gpus()[key].marketing_gb, []).append(key)
    there = ", ".join(f"{size} GB ({', '.join(keys)})" for size, keys in sorted(sizes.items()))
    raise UsageError(
        f"there is no GPU {name!r} in the catalogue: it is not known with {said[1]} GB",
        hint=f"Sizes there are: {there}. Describe another with --gpu-file.",
    )


def _has_size(gpu: Gpu, size: int) -> bool:
    """Whether a GPU is sold with so many GB, or its driver reports so many GiB."""
    return (
        size == gpu.marketing_gb or abs(size - (gpu.reported_bytes / MIB + RESERVED_MIB) / 1024) < 1
    )


def _with_sizes(gpu: Gpu, wanted: str) -> Gpu:
    """Return a GPU with what it was taken for, where it is sold in several sizes and the name says none."""
    joined = wanted.replace("-", "")
    alike = (gpus for name, gpus in _by_series().items() if name.replace("-", "") == joined)
    others = [each for each in next(alike, ()) if each.marketing_gb != gpu.marketing_gb]
    named = any(_SIZE.search(each.key) for each in (gpu, *others))
    if not others or not named:
        return gpu
    listed = ", ".join(f"{each.key} ({each.marketing_gb} GB)" for each in others)
    note = f"{wanted} is taken for {gpu.key}, of {gpu.marketing_gb} GB; there are others: {listed}"
    return replace(gpu, note=note)


def _nearest(wanted: str, names: Sequence[str]) -> list[str]:
    """Return up to three names of GPUs like this one: those that have all of it first, each GPU once.

    Where its first letters are no maker's or series' here (`gaudi`), none is like it.
    """
    bare = wanted.replace("-", "")
    by_bare = {name.replace("-", ""): name for name in names}
    whole = [each for each in by_bare if len(bare) > 2 and bare in each]
    whole.sort(key=lambda each: (not each.startswith(bare), len(each)))
    head = re.match(r"[a-z]*", wanted)
    first = head[0] if head else ""
    series = {match[0] for name in names if (match := re.match(r"[a-z]+", name))}
    is_known = not first or any(_is_like(first, each) for each in series)
    close = get_close_matches(bare, by_bare, n=6, cutoff=0.8 if whole else 0.5) if is_known else []
    found: dict[str, str] = {}
    for each in (*whole, *close):
        name = by_bare[each]
        gpu = _named(name)
        found.setdefault(gpu.key if gpu else name, name)
    return list(found.values())[:3]


def _is_like(word: str, other: str) -> bool:
    """Whether a word of letters is another, but for a letter of a longer one."""
    return word == other or (min(len(word), len(other)) > 2 and distance(word, other) <= 1)


def find_family(name: str) -> Gpu | None:
    """Return the GPU of an Exoscale family (`gpua5000`), or None."""
    return next((gpu for gpu in load_gpus().values() if gpu.family == name), None)


def families() -> tuple[Gpu, ...]:
    """Return the GPUs that Exoscale offers, the smallest memory first."""
    offered = [gpu for gpu in load_gpus().values() if gpu.family is not None]
    return tuple(sorted(offered, key=lambda gpu: gpu.reported_bytes))


@cache
def load_gpus() -> Mapping[str, Gpu]:
    """Return the bundled catalogue by name."""
    return {key: _from_entry(key, entry) for key, entry in _entries().items()}


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of both files; those of the second are not collected with Exoscale's offers."""
    entries: dict[str, Mapping[str, Any]] = {}
    for name in ("gpus.json", "further_gpus.json"):
        text = files("exo_inference.planner").joinpath("catalog", name).read_text(encoding="utf-8")
        entries |= json.loads(text)
    return entries


@cache
def _by_name() -> Mapping[str, Gpu]:
    """Return the GPUs by all their names: those of the catalogue win over common names and aliases."""
    gpus, found = load_gpus(), dict[str, Gpu]()
    for key, entry in _entries().items():
        for alias in [*entry["aliases"], entry["name"]]:
            found[_normalise(alias)] = gpus[key]
    bare = {key.removeprefix("rtx-").removeprefix("rx-"): gpu for key, gpu in gpus.items()}
    return {**bare, **found, **{name: gpus[key] for name, key in _COMMON_NAMES.items()}, **gpus}


@cache
def _by_joined_name() -> Mapping[str, Gpu]:
    """Return the GPUs by their names written together (`rtx4090`), where two GPUs do not share one."""
    meant: dict[str, dict[str, Gpu]] = {}
    for name, gpu in _by_name().items():
        meant.setdefault(name.replace("-", ""), {})[gpu.key] = gpu
    return {name: next(iter(gpus.values())) for name, gpus in meant.items() if len(gpus) == 1}


def _normalise(name: str) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    for word in ("nvidia-", "amd-", "geforce-", "tesla-", "instinct-"):
        text = text.removeprefix(word)
    return text


def _from_entry(key: str, entry: Mapping[str, Any]) -> Gpu:
    reported = entry.get("reported_mib")
    family = entry.get("family") or {}
    prices = {int(count): float(usd) for count, usd in (family.get("usd_hour") or {}).items()}
    source = str(family.get("source") or "")
    if not family and entry.get("market_price"):
        prices = {1: float(entry["market_price"]["usd_hour"])}
        source = f"{entry['market_price']['source']} ({entry['market_price']['date']})"
    capability = str(entry["compute_capability"])
    nvlink = entry.get("nvlink_gbps")
    kept, error = kept_mib(entry["vendor"])
    error = entry.get("reported_error_mib", 128 if reported is not None else error)
    short = entry.get("reported_short_mib", 128 if "reported_error_mib" in entry else None)
    return Gpu(
        key=key,
        name=entry["name"],
        vendor=entry["vendor"],
        reported_bytes=(entry["memory_mib"] - kept if reported is None else reported) * MIB,
        reported_error_bytes=error * MIB,
        reported_short_bytes=None if short is None else short * MIB,
        bandwidth=entry["bandwidth_gbps"] * 1e9,
        tflops=entry["tflops"],
        capability=float(capability) if re.fullmatch(r"[0-9.]+", capability) else None,
        gfx=capability if capability.startswith("gfx") else "",
        native=frozenset(entry["native"]),
        link_bandwidth=(nvlink / 2 if nvlink else entry.get("pcie_gbps") or 16) * 1e9,
        has_nvlink=bool(nvlink),
        nvlink_size=entry.get("nvlink_size") or 8,
        pcie_bandwidth=(entry.get("pcie_gbps") or 16) * 1e9,
        host_bandwidth=_host_bandwidth(key, entry),
        is_unified=bool(entry.get("unified")),
        family=family.get("name"),
        usd_per_hour=prices,
        price_source=source,
        max_count=max(prices, default=8) if family else 1 if entry.get("unified") else 8,
        marketing_gb=entry["marketing_gb"],
        source=entry["source"],
    )


_CHIP_LINKS = {"gh200": 450e9, "gb200": 225e9, "gb300": 225e9}
"""NVLink-C2C of Grace to each GPU, per direction: 900 GB/s in both directions by NVIDIA's datasheets of GH200
and GB200, where two GPUs share it."""


def _host_bandwidth(key: str, entry: Mapping[str, Any]) -> float:
    """Return the link to the host: PCIe of the card's generation, 16 lanes, unless it is closer."""
    if entry.get("unified"):
        return float(entry["bandwidth_gbps"]) * 1e9
    return _CHIP_LINKS.get(key, (entry.get("pcie_gbps") or 16) * 1e9)


ASSUMED_BANDWIDTH, ASSUMED_OPERATIONS = 40e9, 0.5e12
"""Of a processor that nobody measured: bytes read, and operations in float32 or bf16, per second."""


def cpu_as_gpu(
    free_bytes: int,
    *,
    is_fast_in_bfloat16: bool = False,
    kernels: str = "avx512",
    bandwidth: float | None = None,
    operations: Mapping[str, float] | None = None,
) -> Gpu:
    """Return a machine's CPU in the form of a GPU, for exo-engine.

    Args:
        free_bytes: memory that can be used.
        is_fast_in_bfloat16: whether it is, by itself or by the engine's kernels; where nobody knows, plans count float32.
        kernels: the instructions of the engine's compiled kernels, `plain` for loops without vectors; empty: it has none.
        bandwidth: of weights that are read, bytes per second; None: nobody measured the machine.
        operations: of products per second, by the weights' format: `plain`, `int8`, `int4`.
    """
    is_measured = bandwidth is not None and operations is not None
    rates = dict(operations) if is_measured and operations else {"plain": ASSUMED_OPERATIONS}
    plain = rates.pop("plain") / 1e12
    tflops = {"fp16": plain, "bf16": plain, **{kind: rate / 1e12 for kind, rate in rates.items()}}
    gigabytes, teraflops = ASSUMED_BANDWIDTH / 1e9, ASSUMED_OPERATIONS / 1e12
    assumed = f"an assumed machine of {gigabytes:.0f} GB/s and {teraflops:g} TFLOP/s"
    return Gpu(
        key="cpu",
        name="CPU",
        vendor="cpu",
        reported_bytes=free_bytes,
        bandwidth=bandwidth or ASSUMED_BANDWIDTH,
        tflops=tflops,
        native=frozenset({"fp16", "bf16"} if is_fast_in_bfloat16 else {"fp16"}),
        host_bandwidth=bandwidth or ASSUMED_BANDWIDTH,
        max_count=1,
        source="the engine measured on this machine" if is_measured else assumed,
        is_measured=is_measured,
        kernels=kernels,
    )
