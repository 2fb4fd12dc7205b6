"""What is refused and what is advised instead, judged by vLLM's own functions rather than by a copy of them.

vLLM's CPU build is asked in an environment of its own: `make test-clients CLIENTS=vllm` makes it. The refusal must
stand with the most memory that the plan's band allows, the first advice with the least.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner import Advice, Plan, Verdict, advise, find_gpu, load_models, plan
from exo_inference.planner.catalog_models import read_entry
from exo_inference.planner.kv_cache import state_page_bytes
from exo_inference.planner.model.shapes import KvKind, KvSpec
from tests.planner.flags import settings_of

PYTHON = Path(os.environ.get("CLIENT_ENVIRONMENTS", "."), "vllm", "bin", "python")
PROGRAM = Path(__file__).with_name("programs") / "vllm_admission.py"
pytestmark = pytest.mark.clients
RELEASE = "0.32.0"
GPUS = ["T4", "L4", "A10", "RTX 4090", "L40S", "A100 80GB", "H100"]
FLAGS: list[list[str]] = [[], ["--gpu-memory-utilization=0.7"], ["--enforce-eager"]]
KINDS = {KvKind.FULL, KvKind.SLIDING, KvKind.LATENT, KvKind.STATE}


def layer_of(spec: KvSpec, found: Plan) -> dict[str, Any]:
    assert found.basis is not None
    settings, block = found.basis.setting.kv, found.kv_block_size
    layer = {
        "kind": spec.kind.value, "block_size": block, "window": spec.window, "key_dim": spec.key_dim,
        "value_dim": spec.value_dim, "dtype_bytes": int(settings.dtype_bytes),
        "num_heads": spec.heads_per_rank(settings.tensor_parallel_size),
    }  # fmt: skip
    if spec.kind is KvKind.STATE:
        layer["num_bytes"] = state_page_bytes(spec, settings)
        specs = found.basis.stage.specs
        rows = [
            2 * each.heads_per_rank(settings.tensor_parallel_size) * each.key_dim
            for each in specs
            if each.key_dim
        ]
        layer["page_bytes"] = block * max(rows) * int(settings.dtype_bytes)
    return layer


def case_of(found: Plan, num_bytes: int) -> dict[str, Any]:
    assert found.basis is not None
    setting = found.basis.setting
    return {
        "layers": [layer_of(spec, found) for spec in found.basis.stage.specs],
        "num_bytes": num_bytes, "max_model_len": found.max_model_len,
        "model_length": setting.model.max_model_len, "max_num_seqs": found.max_num_seqs,
        "max_num_batched_tokens": found.max_num_batched_tokens,
    }  # fmt: skip


def can_be_asked(found: Plan) -> bool:
    if found.basis is None or found.basis.setting.kv.scale_bytes:
        return False
    specs = found.basis.stage.specs
    return (
        bool(specs)
        and {each.kind for each in specs} <= KINDS
        and not any(s.is_sparse for s in specs)
    )


def refusals() -> Iterator[tuple[str, Plan, Advice]]:
    """Plans that leave room for a cache, though not for one request, with the first advice; by hash."""
    asked = [(name, gpu, tuple(flags)) for name in load_models() for gpu in GPUS for flags in FLAGS]
    for name, gpu, flags in sorted(asked, key=lambda each: sha256(repr(each).encode()).digest()):
        model = read_entry(name)
        settings = settings_of(list(flags), engine_version=RELEASE)
        found = plan(model, find_gpu(gpu), 1, settings)
        is_short = found.verdict is Verdict.REFUSED and found.available_kv_bytes_high > 0
        if not is_short or not can_be_asked(found):
            continue
        advice = next(iter(advise(model, find_gpu(gpu), 1, settings)), None)
        if advice is not None and can_be_asked(advice.plan):
            yield f"{name} on {gpu} {' '.join(flags)}", found, advice


def test_vllm_refuses_what_is_refused_and_admits_the_first_advice() -> None:
    assert PYTHON.exists(), f"no {PYTHON}: run `make test-clients CLIENTS=vllm`"
    drawn = [each for _, each in zip(range(20), refusals(), strict=False)]
    assert len(drawn) == 20
    cases = [case_of(found, found.available_kv_bytes_high) for _, found, _ in drawn]
    cases += [case_of(a.plan, a.plan.available_kv_bytes_low) for _, _, a in drawn]
    answer = subprocess.run(
        [str(PYTHON), str(PROGRAM)], input=json.dumps(cases), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    said = json.loads(answer.stdout.splitlines()[-1])
    refused = {name: each for (name, _, _), each in zip(drawn, said[:20], strict=True)}
    admitted = {
        f"{name}: {advice.kinds}": each
        for (name, _, advice), each in zip(drawn, said[20:], strict=True)
    }
    assert not [name for name, each in refused.items() if "error" not in each]
    assert not {name: each for name, each in admitted.items() if "error" in each}
