"""What exo-engine's kernels for processors leave to PyTorch: no speed is promised, and flags that need them are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exo_inference.planner import (
    Gpu,
    Plan,
    Verdict,
    advise,
    cpu_as_gpu,
    find_gpu,
    plan,
    read_architecture,
)
from exo_inference.planner.engine_rules import rules_for
from tests.planner.flags import settings_of
from tests.planner.test_exo_on_a_cpu import CONFIG, HYBRID, LATENT, NEXT

CPU = cpu_as_gpu(16 * 2**30, is_fast_in_bfloat16=True, kernels="avx512_bf16")
WINDOWED = {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "sliding_window": 256}
GEMMA4 = {**WINDOWED, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 3072}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "deepseek_v2": ("DeepseekV2ForCausalLM", LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**LATENT, "n_group": 1, "topk_group": 1}),
    "gemma2": ("Gemma2ForCausalLM", WINDOWED),
    "gemma3_text": ("Gemma3ForCausalLM", WINDOWED),
    "gemma4_text": ("Gemma4ForCausalLM", {**GEMMA4, "global_head_dim": 32}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**WINDOWED, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", HYBRID),
    "qwen3_moe": ("Qwen3MoeForCausalLM", EXPERTS),
    "qwen3_next": ("Qwen3NextForCausalLM", {**NEXT, **EXPERTS}),
}
WHOLE = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}
ENCODERS = {"bert", "roberta", "xlm-roberta"}


def config(family: str, **changes: object) -> dict[str, object]:
    named, own = FAMILIES[family]
    return {**CONFIG, **own, "model_type": family, "architectures": [named], **changes}


def planned(family: str, *flags: str, gpu: Gpu = CPU, **changes: object) -> Plan:
    model = read_architecture(config(family, **changes), name="tiny")
    return plan(model, gpu, 1, settings_of(list(flags), engine="exo"))


def problems(found: Plan) -> list[str]:
    return [each.detail for each in found.problems]


@pytest.mark.parametrize(
    ("family", "changes", "weights"),
    [
        *((family, {}, "plain") for family in sorted(FAMILIES)),
        *(
            (family, changes, weights)
            for family, changes in (
                ("llama", {"hidden_size": 101}),
                ("qwen3", {"hidden_size": 101, "tie_word_embeddings": False}),
                ("qwen2", {"intermediate_size": 333}),
                ("qwen3_moe", {"moe_intermediate_size": 33}),
                ("qwen3_moe", {"intermediate_size": 333}),
                ("qwen3_moe", {"hidden_size": 101}),
                ("llama", {"intermediate_size": 2**16}),
            )
            for weights in ("plain", "int8", "int4")
        ),
        *(
            pytest.param(family, changes, weights, marks=pytest.mark.slow)
            for family, changes in (
                ("llama", {"intermediate_size": 2**16 + 8}),
                ("qwen3_moe", {"moe_intermediate_size": 2**16 + 8}),
                ("qwen3", {"hidden_size": 2**16 + 16, "vocab_size": 64}),
            )
            for weights in ("plain", "int8", "int4")
        ),
    ],
)
def test_models_are_known_as_the_engine_computes_them(
    family: str, changes: dict[str, object], weights: str, tmp_path: Path
) -> None:
    import json

    torch = pytest.importorskip("torch")
    decoder, config_file = (
        pytest.importorskip(f"exo_engine.models.{name}") for name in ("decoder", "config_file")
    )
    library = pytest.importorskip("exo_engine.kernels.library")
    device = torch.device("cpu")
    if library.kernels_for(torch.bfloat16, device) is None:
        pytest.skip("the engine's kernels are not compiled here")
    (tmp_path / "config.json").write_text(json.dumps(config(family, **changes)))
    spec = config_file.read_spec(tmp_path)
    model = decoder.Decoder(spec, dtype=torch.bfloat16, device=device, weight_format=weights)
    for layer in model.weighted_layers:
        layer.finish()
    flags = ["--batch-invariant", *([] if weights == "plain" else [f"--quantization={weights}"])]
    is_refused = planned(family, *flags, **changes).verdict is Verdict.REFUSED
    is_whole = model.is_computed_by_kernels and model.head.is_computed_by_kernels
    assert is_whole != is_refused
    if not changes:
        assert is_whole == (family in WHOLE)
    # What the engine says before it has layers, so that nobody waits for weights that are then refused.
    config_module, loading, parts = (
        pytest.importorskip(f"exo_engine.{name}")
        for name in ("config", "core.loading", "models.by_pytorch")
    )
    asked = config_module.EngineConfig(
        tmp_path,
        device="cpu",
        dtype="bfloat16",
        quantization=None if weights == "plain" else weights,
    )
    settings = config_module.resolve(asked, config_file.limits_of(spec), has_cuda=False)
    dtype = loading.DTYPES[settings.dtype]
    assert bool(parts.parts_by_pytorch(spec, dtype, settings.weight_format)) == is_refused


def test_a_size_of_a_strangers_config_takes_no_memory_before_the_weights_are_looked_at() -> None:
    parts = pytest.importorskip("exo_engine.models.by_pytorch")
    most = pytest.importorskip("exo_engine.kernels.quantized").MAX_GROUP
    for size in (2, 100, most, most + 8):
        assert parts._probed(size) == size
    for size in (10_000_001, 2**31 - 1, 2**62):
        assert most < parts._probed(size) < 2 * most + 128
        assert (parts._probed(size) - size) % 128 == 0


def test_a_second_processor_is_refused_as_such_and_for_nothing_else() -> None:
    model = read_architecture(
        config("llama", num_attention_heads=9, num_key_value_heads=3), name="tiny"
    )
    found = plan(model, CPU, 2, settings_of([], engine="exo"))
    assert problems(found) == ["exo-engine runs on one processor, 2 were asked for; ask for 1"]


def test_a_cache_that_the_kernels_read_is_advised() -> None:
    model = read_architecture(config("llama", max_position_embeddings=2**20), name="tiny")
    flags = settings_of(["--max-model-len=600000", "--kv-cache-memory-bytes=1G"], engine="exo")
    size = plan(model, CPU, 1, flags).needed_kv_bytes_per_gpu * 3 // 4
    flags = settings_of([f"--kv-cache-memory-bytes={size}", "--max-model-len=600000"], engine="exo")
    found = [flag for each in advise(model, CPU, 1, flags, other_gpus=()) for flag in each.flags]
    assert "--kv-cache-dtype=int8" in found
    assert "--kv-cache-dtype=fp8" not in found


def test_every_family_that_the_engine_serves_is_judged() -> None:
    assert rules_for("exo", "").families == FAMILIES.keys() | ENCODERS


def test_formats_and_caches_are_known_as_the_engine_computes_them() -> None:
    torch = pytest.importorskip("torch")
    formats = pytest.importorskip("exo_engine.weight_formats")
    kv_formats = pytest.importorskip("exo_engine.attention.kv_format").KV_FORMATS
    library = pytest.importorskip("exo_engine.kernels.library")
    device = torch.device("cpu")
    if library.kernels_for(torch.bfloat16, device) is None:
        pytest.skip("the engine's kernels are not compiled here")
    kernels = rules_for("exo", "").kernels
    assert kernels is not None
    computed = {
        name
        for name in formats.formats_made_at_load()
        if formats.load_format(name)(64, 64, dtype=torch.bfloat16, device=device).kernel_call()
    }
    assert computed == kernels.quantizations
    assert kernels.cache_types - {"auto"} == {"bfloat16", "int8"} <= kv_formats.keys()


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--quantization=fp8", "multiply no weights of --quantization=fp8"),
        ("--quantization=fp8_per_block", "multiply no weights of --quantization=fp8_per_block"),
        ("--kv-cache-dtype=fp8", "read no KV cache of --kv-cache-dtype=fp8"),
        ("--kv-cache-dtype=fp8_e4m3", "read no KV cache of --kv-cache-dtype=fp8_e4m3"),
        ("--kv-cache-dtype=float32", "read no KV cache of --kv-cache-dtype=float32"),
        ("--kv-cache-dtype=float16", "read no KV cache of --kv-cache-dtype=float16"),
        ("--attention-backend=reference", "--attention-backend=reference does not attend by"),
        ("--block-size=8", "blocks of a multiple of 16 tokens, --block-size is 8"),
        ("--dtype=float16", "compute in bfloat16 alone, not in float16"),
    ],
)
def test_no_speed_is_promised_for_what_flags_leave_to_pytorch(flag: str, told: str) -> None:
    found = planned("llama", flag)
    assert found.verdict is Verdict.FITS
    assert found.speed is None
    [note] = found.notes
    assert told in note
    assert note.endswith("how fast is not estimated")


@pytest.mark.parametrize(
    "flags",
    [
        (), ("--kv-cache-dtype=int8",), ("--kv-cache-dtype=auto",), ("--kv-cache-dtype=bfloat16",),
        ("--attention-backend=cpu",), ("--attention-backend=auto",), ("--quantization=int4", "--block-size=32"),
        ("--batch-invariant",), ("--batch-invariant", "--kv-cache-dtype=int8", "--quantization=int8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("family", sorted(WHOLE))
def test_what_the_kernels_compute_fits_and_has_a_speed(family: str, flags: tuple[str, ...]) -> None:
    found = planned(family, *flags)
    assert (found.verdict, problems(found), found.notes) == (Verdict.FITS, [], ())
    assert found.speed is not None


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - WHOLE))
def test_a_family_that_pytorch_computes_a_part_of_is_told(family: str) -> None:
    found = planned(family)
    [note] = [each for each in found.notes if "PyTorch computes" in each]
    assert f"of {family} models on a CPU" in note
    is_near = family in ("gemma2", "gemma3_text")
    assert (found.speed is not None) == is_near
    assert note.endswith("takes up to 1.7 times as long as estimated") == is_near


def test_heads_that_the_kernels_do_not_read_are_told() -> None:
    found = planned("llama", head_dim=40)
    assert found.speed is None
    assert (
        "heads of a multiple of 16 numbers and of 256 at most, this model has heads of 40"
        in (found.notes[0])
    )


@pytest.mark.parametrize(
    ("family", "changes", "told"),
    [
        ("qwen3", {"hidden_size": 101}, "embedding and head of 101; set --quantization=int8, or leave"),
        ("qwen2", {"intermediate_size": 333}, "matrices of 333; set --quantization=int8, or leave"),
        ("qwen3_moe", {"hidden_size": 101}, "embedding and head of 101, routers of experts of 101; leave"),
    ],
)  # fmt: skip
def test_odd_sizes_that_the_kernels_do_not_multiply_are_told(
    family: str, changes: dict[str, object], told: str
) -> None:
    assert planned(family, **changes).speed is None
    [problem] = problems(planned(family, "--batch-invariant", **changes))
    assert f"multiply plain weights of a multiple of 2 inputs, this model has {told}" in problem


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--dtype=float32",), "not in float32; set --dtype=bfloat16, or leave --batch-invariant out"),
        (("--quantization=fp8",), "set --quantization=int8 or int4, or leave --quantization out, or leave"),
        (("--kv-cache-dtype=fp8",), "set --kv-cache-dtype=int8, or leave --kv-cache-dtype out, or leave"),
        (("--attention-backend=reference",), "leave --attention-backend out, or leave --batch-invariant"),
        (("--block-size=8",), "set --block-size=16, or leave --batch-invariant out"),
    ],
)  # fmt: skip
def test_bits_that_cannot_be_kept_are_refused(flags: tuple[str, ...], told: str) -> None:
    found = planned("qwen3", "--batch-invariant", *flags)
    assert found.verdict is Verdict.REFUSED
    [problem] = [each for each in found.problems if each.code == "batch-invariant"]
    assert problem.detail.startswith("--batch-invariant cannot be kept on a CPU: ")
    assert told in problem.detail
    assert found.speed is None
    assert planned("qwen3", "--no-batch-invariant", *flags).verdict is Verdict.FITS


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - WHOLE))
def test_bits_of_a_family_that_pytorch_computes_a_part_of_are_refused(family: str) -> None:
    found = planned(family, "--batch-invariant")
    assert found.verdict is Verdict.REFUSED
    assert f"of {family} models on a CPU; leave --batch-invariant out" in problems(found)[0]


@pytest.mark.parametrize(
    ("flag", "start"),
    [
        ("--batch-invariant", "--batch-invariant cannot be kept on a CPU: "),
        ("--attention-backend=cpu", "--attention-backend=cpu is not there: "),
    ],
)
def test_what_needs_kernels_is_refused_where_there_are_none(flag: str, start: str) -> None:
    found = planned("qwen3", flag, gpu=replace(CPU, kernels=""))
    assert found.verdict is Verdict.REFUSED
    [problem] = problems(found)
    assert problem.startswith(f"{start}exo-engine is not installed here with compiled kernels")
    assert "unset EXO_ENGINE_CPU_KERNELS" in problem


@pytest.mark.parametrize(
    ("family", "flag", "told"),
    [
        ("llama", "--dtype=float32", "in bfloat16 alone, not in float32; set --dtype=bfloat16, or"),
        ("llama", "--kv-cache-dtype=fp8", "set --kv-cache-dtype=int8, or leave"),
        ("deepseek_v2", "--max-num-seqs=4", "do not attend to latents; leave --attention-backend"),
    ],
)
def test_attention_by_kernels_is_refused_where_they_do_not_attend(
    family: str, flag: str, told: str
) -> None:
    found = planned(family, "--attention-backend=cpu", flag)
    assert found.verdict is Verdict.REFUSED
    [problem] = [each for each in found.problems if each.code == "attention-backend"]
    assert told in problem.detail


def test_attention_by_kernels_does_not_ask_what_layers_are() -> None:
    for family, flag in (("gemma2", "--max-num-seqs=4"), ("llama", "--quantization=fp8")):
        assert planned(family, "--attention-backend=cpu", flag).verdict is Verdict.FITS


@pytest.mark.parametrize("backend", ["torch", "triton", "flashinfer"])
def test_backends_of_gpus_are_refused_on_a_cpu(backend: str) -> None:
    found = planned("llama", f"--attention-backend={backend}")
    assert problems(found) == [
        f"--attention-backend={backend} is not there: it needs a GPU; leave --attention-backend out"
    ]
    assert problems(planned("llama", f"--attention-backend={backend}", gpu=find_gpu("H100"))) == []


def test_the_backend_of_a_cpu_is_refused_on_a_gpu() -> None:
    gpu = find_gpu("H100")
    assert problems(planned("llama", "--attention-backend=cpu", gpu=gpu)) == [
        "--attention-backend=cpu is not there: it computes on a CPU alone; leave --attention-backend out"
    ]
    assert problems(planned("llama", "--attention-backend=reference", gpu=gpu)) == []


def test_a_model_that_embeds_is_refused_flags_of_models_that_generate() -> None:
    flags = ("--batch-invariant", "--attention-backend=reference")
    found = planned("qwen3", *flags, architectures=["Qwen3Model"])
    assert [each.code for each in found.problems] == ["batch-invariant", "attention-backend"]
    assert problems(found)[0].endswith("embeds or scores; leave --batch-invariant out")
    assert problems(planned("qwen3", architectures=["Qwen3Model"])) == []


def test_the_engine_has_the_backends_that_are_known() -> None:
    backends = pytest.importorskip("exo_engine.attention").BACKENDS
    kernels = rules_for("exo", "").kernels
    assert kernels is not None
    assert {kernels.backend, *kernels.other_backends} - {"auto"} < backends.keys()


def test_on_a_gpu_nothing_of_it_is_asked() -> None:
    found = planned("gemma2", "--batch-invariant", "--kv-cache-dtype=fp8", gpu=find_gpu("H100"))
    assert problems(found) == []


@pytest.mark.parametrize("flag", ["--cpu-threads=1", "--cpu-threads=3"])
def test_fewer_threads_are_told_beside_a_speed_of_all(flag: str) -> None:
    found = planned("llama", flag)
    assert found.speed == planned("llama").speed
    [note] = found.notes
    assert note.startswith(f"the speed is that of a thread on each core; with {flag} on more cores")
    assert flag in found.parameters.format()
    assert len(planned("llama", flag, "--dtype=float32").notes) == 1, "no speed, no word of it"
    assert planned("llama", flag, gpu=find_gpu("H100")).notes == ()
