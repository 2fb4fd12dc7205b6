"""Why an engine in a container ended, from its exit code and its last words. Pure.

The Kubernetes platform calls `diagnose_container` for every engine; the signatures are those of
vLLM and of PyTorch below it, which the other GPU engines share. What `exo-engine` and the entrypoint
of the images say of themselves is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from exo_inference.engines.base import Failure

EXIT_CONFIG = 78
"""What the entrypoint ends with when a variable, the parameters or the model is wrong."""

EXIT_NO_PROGRAM = 127

_OWN_WORDS = re.compile(r"exo-(?:adapter|engine): error: (.+)")

_LESS_MEMORY = "Lower --max-model-len or --gpu-memory-utilization, or take more or larger GPUs"

_SIGNATURES: tuple[tuple[re.Pattern[str], str, bool], ...] = (
    (
        re.compile(r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"),
        f"the GPU's memory ran out. {_LESS_MEMORY}",
        True,
    ),
    (
        re.compile(r"No available memory for the cache blocks"),
        "the weights leave no GPU memory for the KV cache. Raise --gpu-memory-utilization, "
        "or take more or larger GPUs",
        False,
    ),
    (
        re.compile(r"max(imum)? (model|seq(uence)?) len(gth)?\b.*(larger|greater) than", re.I),
        "the context length needs more KV cache than the GPU has room for. Lower --max-model-len",
        False,
    ),
    (
        re.compile(r"Free memory on device.*less than desired", re.I),
        "another process holds memory of the GPU. Lower --gpu-memory-utilization, or see what else "
        "runs on the node",
        True,
    ),
    (
        re.compile(r"error: (unrecognized arguments: .+)"),
        "a flag is not known to this release of the engine: {0}. Correct the engine parameters",
        False,
    ),
    (
        re.compile(r"error: (argument \S+: .+)"),
        "a flag has a wrong value: {0}. Correct the engine parameters",
        False,
    ),
    (
        re.compile(r"GatedRepoError|is a gated repo|Access to model .+ is restricted", re.I),
        "the model is gated, and access was not given. Accept its licence on the Hub, and create the "
        "model again with a token",
        False,
    ),
    (
        re.compile(r"Model architectures \[?(.+?)\]? are not supported"),
        "this release of the engine does not know the architecture {0}. Choose a newer release",
        False,
    ),
    (
        re.compile(r"trust_remote_code=True|--trust-remote-code"),
        "the model has code of its own, which is not run unasked. Set --trust-remote-code if you "
        "trust it",
        False,
    ),
    (
        re.compile(r"no kernel image is available|compute capability .* (is )?(not|at least)", re.I),
        "the engine or the quantization does not support this GPU. Choose another GPU type or "
        "quantization",
        False,
    ),
    (
        re.compile(r"CUDA driver version is insufficient|driver.*too old", re.I),
        "the node's GPU driver is too old for the image. Update the driver, or choose an older release",
        False,
    ),
    (
        re.compile(r"No CUDA GPUs are available|no NVIDIA driver|Failed to infer device type", re.I),
        "the container sees no GPU. Check the device plugin and the runtime class of the node",
        False,
    ),
    (
        re.compile(r"NCCL (error|WARN).*|ncclSystemError|ncclUnhandledCudaError"),
        "the GPUs of the replica cannot talk to each other (NCCL). Check /dev/shm and the node's GPUs",
        True,
    ),
    (
        re.compile(r"No space left on device"),
        "the disk of the pod is full. Raise scratch.sizeLimit",
        True,
    ),
)  # fmt: skip


def diagnose_container(exit_code: int | None, log_tail: Sequence[str]) -> Failure:
    """Say why a container ended.

    Args:
        exit_code: as Kubernetes has it: 128 + n for signal n; None if nobody saw the end.
        log_tail: its last lines, oldest first.
    """
    final = exit_code in (EXIT_CONFIG, EXIT_NO_PROGRAM)
    found = _find_signature(log_tail)
    if found is not None:
        message, retry = found
        return Failure(message, retry=retry and not final)
    own = _find_own_words(log_tail)
    if own is not None:
        return Failure(own, retry=not final)
    return Failure(_of_code(exit_code, log_tail), retry=not final)


def _find_signature(log_tail: Sequence[str]) -> tuple[str, bool] | None:
    # By rank and not by line: what an out-of-memory drags along comes after it in the log.
    for pattern, message, retry in _SIGNATURES:
        for line in reversed(log_tail):
            if match := pattern.search(line):
                groups = [(group or "").strip()[:200] for group in match.groups()]
                return message.format(*groups), retry
    return None


def _find_own_words(log_tail: Sequence[str]) -> str | None:
    for line in reversed(log_tail):
        if match := _OWN_WORDS.search(line):
            return match[1].strip()[:400]
    return None


def _of_code(exit_code: int | None, log_tail: Sequence[str]) -> str:
    if exit_code is None:
        return "the engine ended while nobody watched"
    if exit_code == 0:
        return "the engine ended without being asked to"
    if exit_code == EXIT_NO_PROGRAM:
        return "the engine's program is not in the image. Check engine.image"
    if exit_code > 128:
        return f"the engine was ended by signal {exit_code - 128}"
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "")
    said = f"; its last words: {last[:200]}" if last else ""
    return f"the engine failed with exit code {exit_code}{said}"
