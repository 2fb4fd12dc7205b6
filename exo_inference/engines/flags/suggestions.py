"""Did you mean: the flag somebody wanted, by meaning, beginning, likeness or shared words. Pure.

`vllm_words.py` and `plain_words.py` ask here. The table of meanings holds names of other engines and tools,
of older releases, and words that people use instead of vLLM's.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection

MEANINGS = {
    # Lengths
    "max-tokens": "--max-model-len",
    "max-length": "--max-model-len",
    "max-seq-len": "--max-model-len",
    "max-seq-length": "--max-model-len",
    "max-sequence-length": "--max-model-len",
    "max-context": "--max-model-len",
    "max-context-len": "--max-model-len",
    "max-context-length": "--max-model-len",
    "max-position-embeddings": "--max-model-len",
    "max-total-tokens": "--max-model-len",
    "max-input-length": "--max-model-len",
    "max-new-tokens": "--max-model-len",
    "context": "--max-model-len",
    "context-len": "--max-model-len",
    "context-length": "--max-model-len",
    "context-size": "--max-model-len",
    "ctx-len": "--max-model-len",
    "ctx-size": "--max-model-len",
    "n-ctx": "--max-model-len",
    "num-ctx": "--max-model-len",
    # Memory
    "gpu-memory": "--gpu-memory-utilization",
    "gpu-mem": "--gpu-memory-utilization",
    "gpu-util": "--gpu-memory-utilization",
    "gpu-utilization": "--gpu-memory-utilization",
    "gpu-memory-fraction": "--gpu-memory-utilization",
    "utilization": "--gpu-memory-utilization",
    "memory-utilization": "--gpu-memory-utilization",
    "memory-fraction": "--gpu-memory-utilization",
    "mem-fraction-static": "--gpu-memory-utilization",
    "vram-fraction": "--gpu-memory-utilization",
    "kv-dtype": "--kv-cache-dtype",
    "kv-quant": "--kv-cache-dtype",
    "kv-quantization": "--kv-cache-dtype",
    "cache-dtype": "--kv-cache-dtype",
    "cache-type-k": "--kv-cache-dtype",
    "kv-cache-size": "--kv-cache-memory-bytes",
    "kv-cache-memory": "--kv-cache-memory-bytes",
    "cpu-offload": "--cpu-offload-gb",
    "offload-gb": "--cpu-offload-gb",
    "page-size": "--block-size",
    # Batches
    "batch-size": "--max-num-seqs",
    "max-batch-size": "--max-num-seqs",
    "max-concurrency": "--max-num-seqs",
    "max-concurrent-requests": "--max-num-seqs",
    "max-running-requests": "--max-num-seqs",
    "concurrency": "--max-num-seqs",
    "parallel": "--max-num-seqs",
    "max-batch-tokens": "--max-num-batched-tokens",
    "max-batch-prefill-tokens": "--max-num-batched-tokens",
    "chunked-prefill-size": "--max-num-batched-tokens",
    "max-prefill-tokens": "--max-num-batched-tokens",
    "max-batch-total-tokens": "--max-num-batched-tokens",
    "chunked-prefill": "--enable-chunked-prefill",
    "prefix-caching": "--enable-prefix-caching",
    "prefix-cache": "--enable-prefix-caching",
    "enable-prefix-cache": "--enable-prefix-caching",
    "disable-prefix-caching": "--no-enable-prefix-caching",
    "disable-prefix-cache": "--no-enable-prefix-caching",
    "disable-radix-cache": "--no-enable-prefix-caching",
    "schedule-policy": "--scheduling-policy",
    # Formats
    "precision": "--dtype",
    "torch-dtype": "--dtype",
    "data-type": "--dtype",
    "quantize": "--quantization",
    "quant": "--quantization",
    "eager": "--enforce-eager",
    "disable-cuda-graph": "--enforce-eager",
    "disable-cuda-graphs": "--enforce-eager",
    "no-cuda-graph": "--enforce-eager",
    "no-cuda-graphs": "--enforce-eager",
    "disable-cudagraph": "--enforce-eager",
    "cuda-graph-bs": "--cudagraph-capture-sizes",
    "cuda-graph-max-bs": "--max-cudagraph-capture-size",
    "max-seq-len-to-capture": "--max-cudagraph-capture-size",
    "max-context-len-to-capture": "--max-cudagraph-capture-size",
    # GPUs
    "tp": "--tensor-parallel-size",
    "tp-size": "--tensor-parallel-size",
    "tensor-parallel": "--tensor-parallel-size",
    "num-gpus": "--tensor-parallel-size",
    "num-shard": "--tensor-parallel-size",
    "gpus": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "pp-size": "--pipeline-parallel-size",
    "dp": "--data-parallel-size",
    "dp-size": "--data-parallel-size",
    "ep": "--enable-expert-parallel",
    "expert-parallel": "--enable-expert-parallel",
    "worker-use-ray": "--distributed-executor-backend",
    "engine-use-ray": "--distributed-executor-backend",
    # Models and requests
    "lora": "--enable-lora",
    "lora-rank": "--max-lora-rank",
    "loras": "--lora-modules",
    "lora-paths": "--lora-modules",
    "rope-scaling": "--hf-overrides",
    "rope-theta": "--hf-overrides",
    "config-overrides": "--hf-overrides",
    "json-model-override-args": "--hf-overrides",
    "temperature": "--override-generation-config",
    "top-p": "--override-generation-config",
    "top-k": "--override-generation-config",
    "remote-code": "--trust-remote-code",
    "random-seed": "--seed",
    "template": "--chat-template",
    "jinja": "--chat-template",
    "chat-template-kwargs": "--default-chat-template-kwargs",
    "enable-thinking": "--default-chat-template-kwargs",
    "tool-parser": "--tool-call-parser",
    "enable-tools": "--enable-auto-tool-choice",
    "auto-tool-choice": "--enable-auto-tool-choice",
    "enable-reasoning": "--reasoning-parser",
    "reasoning": "--reasoning-parser",
    "guided-decoding-backend": "--structured-outputs-config",
    "grammar-backend": "--structured-outputs-config",
    "speculative-model": "--speculative-config",
    "draft-model": "--speculative-config",
    "speculative-draft-model-path": "--speculative-config",
    "speculative-algorithm": "--speculative-config",
    "num-speculative-tokens": "--speculative-config",
    "ngram-prompt-lookup-max": "--speculative-config",
    "mm-limit": "--limit-mm-per-prompt",
    "max-images": "--limit-mm-per-prompt",
    "attention": "--attention-backend",
    "attn-backend": "--attention-backend",
    "backend": "--attention-backend",
    "disable-log-requests": "--no-enable-log-requests",
    "disable-logging": "--disable-log-stats",
    "log-requests": "--enable-log-requests",
    "o": "--compilation-config",
    "collect-traces": "--otlp-traces-endpoint",
}
"""What people write, without dashes, and the flag that means it."""

_CLOSE, _FAR = 0.8, 0.6


def suggest(flag: str, known: Collection[str]) -> str | None:
    """Return the known flag that was probably meant.

    Args:
        flag: what was written; it is none of `known`.
        known: flags that exist, with their dashes.
    """
    bare = flag.lstrip("-").replace("_", "-").lower()
    if not bare:
        return None
    meant = MEANINGS.get(bare)
    if meant in known:
        return meant
    if found := _by_case(bare, known) or _by_beginning(bare, known):
        return found
    # The dashes, which all have, would make short names look alike.
    names = {name.lstrip("-"): name for name in known}
    nearest, likeness = _nearest(bare, tuple(names))
    if likeness >= _CLOSE:
        return names[nearest]
    return _by_words(bare, known) or names.get(nearest) or _by_part(bare, known)


def _by_case(bare: str, known: Collection[str]) -> str | None:
    return next((name for name in known if name.lstrip("-").lower() == bare), None)


def _by_beginning(bare: str, known: Collection[str]) -> str | None:
    """What argparse would take as an abbreviation: the only flag that begins so."""
    found = [name for name in known if name.startswith(f"--{bare}")]
    return found[0] if len(found) == 1 and len(bare) > 3 else None


@functools.lru_cache(maxsize=64)  # a command line is read several times on its way
def _nearest(bare: str, names: tuple[str, ...]) -> tuple[str, float]:
    """Return the name that is most like this one and how much, at least `_FAR`; no name where none is.

    It is what `difflib.get_close_matches` finds. Names that begin alike come first: once a good one is found,
    most others are passed over by their lengths and letters, which are quick to compare.
    """
    best, matcher = (_FAR, ""), difflib.SequenceMatcher(None, "", bare)
    for name in sorted(names, key=lambda name: name[:2] != bare[:2]):
        matcher.set_seq1(name)
        if matcher.real_quick_ratio() >= best[0] and matcher.quick_ratio() >= best[0]:
            best = max(best, (matcher.ratio(), name))
    return (best[1], best[0]) if best[1] else ("", 0.0)


def _by_words(bare: str, known: Collection[str]) -> str | None:
    """The shortest flag that holds all the words that were written, in any order."""
    words = set(bare.split("-"))
    found = [name for name in known if words <= set(name.lstrip("-").split("-"))]
    return min(found, key=lambda name: (len(name), name), default=None) if len(words) > 1 else None


def _by_part(bare: str, known: Collection[str]) -> str | None:
    found = [name for name in known if bare in name.lstrip("-")] if len(bare) > 2 else []
    return min(found, key=lambda name: (len(name), name), default=None)
