"""What a start has measured, so that a prediction can be held against it.

Loading fills it once, `GET /measurements` shows it as JSON; the names of the fields are the keys and
are kept stable. None means "not measured": on a CPU nobody runs the largest step, and a cache whose
size was given on the command line needs no profile on a GPU either. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """One start, in bytes, tokens and seconds."""

    simulated: bool = False
    """The figures of a simulation are its file's and say nothing about this machine."""
    device: str
    """`cpu` or `cuda`."""
    device_name: str
    dtype: str
    """Of weights, activations and KV cache."""
    max_model_len: int
    """In effect, after it was fitted to the cache."""
    max_num_seqs: int
    max_num_batched_tokens: int
    weights_bytes: int | None = None
    """Of the model's parameters on the device."""
    activation_peak_bytes: int | None = None
    """What the largest step took beyond what was there before it."""
    non_torch_bytes: int | None = None
    """In use on the device outside torch's allocator, by this process or by others."""
    cuda_graph_bytes: int = 0
    """Of CUDA graphs, the memory that they read and write included; measured around their capture."""
    available_kv_bytes: int | None = None
    """What could have been used for the KV cache, before it was capped or rounded to blocks."""
    kv_bytes_per_token: int | None = None
    kv_block_size: int
    kv_block_bytes: int | None = None
    """Of one block of the pool, which serves one group of layers."""
    num_kv_blocks: int
    kv_capacity_tokens: int
    device_total_bytes: int | None = None
    device_free_bytes: int | None = None
    """Before anything was loaded."""
    peak_rss_bytes: int
    """Most host memory that the core process has had in RAM so far."""
    start_up_seconds: Mapping[str, float] = field(default_factory=dict)
    """By phase, in order."""

    def with_rank(self, other: Measurements) -> Measurements:
        """Return these with the bytes of another rank of the same model added."""
        return replace(
            self,
            weights_bytes=_sum(self.weights_bytes, other.weights_bytes),
            cuda_graph_bytes=self.cuda_graph_bytes + other.cuda_graph_bytes,
            kv_bytes_per_token=_sum(self.kv_bytes_per_token, other.kv_bytes_per_token),
            kv_block_bytes=_sum(self.kv_block_bytes, other.kv_block_bytes),
            peak_rss_bytes=self.peak_rss_bytes + other.peak_rss_bytes,
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def peak_rss_bytes() -> int:
    """Return the most memory that this process has had in RAM, 0 where the kernel does not say."""
    # Not getrusage: its maximum survives exec, so a child would show its parent's.
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_name(root: Path = Path("/")) -> str:
    """Return the processor's name, or `cpu` where the kernel does not say."""
    try:
        # A virtual machine's name is its owner's, of any bytes.
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "cpu"
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "cpu"
