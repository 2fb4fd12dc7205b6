"""The bar of a GPU: as wide as asked for, every part in it, the same words for every plan."""

from __future__ import annotations

import pytest

from exo_inference.cli.plan.bars import OVERFLOW, draw, gpu_memories
from exo_inference.planner import find_gpu, find_model, load_models
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.wire import DeploymentPlan


def plan(
    model: str, gpu: str, count: int = 1, *flags: str, version: str | None = None
) -> DeploymentPlan:
    subject = Subject(find_model(model), find_gpu(gpu), count, flags, engine_version=version)
    return to_wire(judge(subject, with_advice=False))


def text(found: DeploymentPlan, width: int = 60) -> list[str]:
    return ["".join(run for run, _ in draw(memory, width)) for memory in gpu_memories(found)]


@pytest.mark.parametrize("width", [56, 76, 96])
@pytest.mark.parametrize("name", list(load_models())[::12])
def test_bars_are_as_wide_as_asked_for(name: str, width: int) -> None:
    for gpu, count in (("gpua5000", 1), ("H100", 8)):
        for memory in gpu_memories(plan(name, gpu, count)):
            bar = "".join(run for run, _ in draw(memory, width))
            assert len(bar) == width
            assert all(part.look.character in bar for part in memory.parts)


def test_parts_add_up_to_the_gpu() -> None:
    (memory,) = gpu_memories(plan("Qwen/Qwen3-8B", "l40s"))
    assert memory.used_bytes == memory.total_bytes
    labels = [part.look.label for part in memory.parts]
    assert labels == [
        "weights", "activations", "CUDA graphs", "non-torch", "KV cache", "left alone",
    ]  # fmt: skip


def test_graphs_beyond_the_share_come_out_of_what_is_left_alone() -> None:
    found = plan("Qwen/Qwen3-8B", "l40s", 1, version="0.12.0")
    graphs = next(each for each in found.components if each.name == "cuda_graphs")
    assert not graphs.in_budget
    (memory,) = gpu_memories(found)
    assert memory.used_bytes == memory.total_bytes
    assert OVERFLOW not in text(found)[0]


def test_memory_that_is_not_there_is_drawn_beyond_the_end_of_the_gpu() -> None:
    found = plan("meta-llama/Llama-3.1-70B-Instruct", "gpua5000", 2)
    bar = text(found)[0]
    (memory,) = gpu_memories(found)
    assert memory.num_gpus == 2
    assert bar.index(OVERFLOW) == round(60 * memory.total_bytes / memory.used_bytes)
    assert bar.count("█") > 30


def test_pipeline_stages_that_differ_have_a_bar_each() -> None:
    flags = ("--tensor-parallel-size=2", "--pipeline-parallel-size=3", "--max-model-len=8192")
    found = plan("meta-llama/Llama-3.1-70B-Instruct", "H100", 6, *flags)
    memories = gpu_memories(found)
    assert len(memories) > 1
    assert sum(memory.num_gpus for memory in memories) == 6
    assert all(memory.used_bytes == memory.total_bytes for memory in memories)


def test_draft_model_and_adapters_are_shown() -> None:
    subject = Subject(
        find_model("meta-llama/Llama-3.1-8B-Instruct"), find_gpu("H100"), 1,
        (
            "--enable-lora",
            '--speculative-config={"model": "meta-llama/Llama-3.2-1B-Instruct", '
            '"num_speculative_tokens": 3}',
        ),
        draft=find_model("meta-llama/Llama-3.2-1B-Instruct"),
    )  # fmt: skip
    labels = [part.look.label for part in gpu_memories(to_wire(judge(subject)))[0].parts]
    assert labels[:3] == ["weights", "draft model", "LoRA"]


def test_flags_that_are_refused_leave_nothing_to_draw() -> None:
    assert gpu_memories(plan("Qwen/Qwen3-8B", "l40s", 1, "--max-tokens=1")) == []
