"""What a name says of a quantization is what is planned: over every bundled model, with and without words of one."""

from __future__ import annotations

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import Architecture, catalog_models, find_model
from exo_inference.planner.catalog_models import _further_models, load_models, read_entry
from exo_inference.planner.model.name_words import UNQUANTIZED, read_words, strip_quantization
from exo_inference.planner.model.requantize import stored_bytes

_ENTRIES = sorted({*load_models(), *_further_models()})
_PARTS = [tuple(name.lower().rsplit("/", 1)) for name in _ENTRIES]
_SHORT = {short for _, short in _PARTS}
_KINDS = ("", "-Instruct", "-Base", "-tuned", "-2507")
_SAID = {"BF16": None, "FP8": 8, "NVFP4": 4, "AWQ": 4, "Q8_0-GGUF": 8}
"""Words of names and the bits of a weight, scales left out."""


@pytest.fixture(autouse=True)
def _suggest_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse without looking for the nearest names, which takes longer than all else."""
    monkeypatch.setattr(catalog_models, "_nearest", lambda name: [])


def _found(name: str) -> Architecture | None:
    try:
        return find_model.__wrapped__(name)
    except UsageError:
        return None


def _bare_names() -> list[str]:
    shorts = (name.rpartition("/")[2].lower() for name in _ENTRIES)
    return sorted({strip_quantization(short) for short in shorts})


@pytest.mark.parametrize("kind", _KINDS)
def test_no_name_without_a_quantization_is_planned_in_one(kind: str) -> None:
    owners = {strip_quantization(short): owner for owner, short in _PARTS}
    names = [
        f"{owner}/{bare}{kind}"
        for bare in _bare_names()
        for owner in {owners.get(bare, "me"), "me"}
    ]
    planned = [name for name in names if (found := _found(name)) and found.quantization]
    own = [name for name in planned if name.rpartition("/")[2].lower() in _SHORT]
    assert planned == own  # models whose own files are quantized
    assert len(names) > 700


@pytest.mark.parametrize("word", sorted(_SAID))
def test_a_quantization_behind_any_bundled_name_is_planned(word: str) -> None:
    bits = _SAID[word]
    models = {
        short: _found(f"me/{short}") for short in (f"{bare}-{word}" for bare in _bare_names())
    }
    sized = {name: model.quantization for name, model in models.items() if model is not None}
    assert len(sized) > 500
    for name, form in sized.items():
        if bits is None or form is None:
            assert form is bits, name
        elif name.lower() not in _SHORT:  # those that are bundled say what of them is in which form
            assert bits <= form.default.bits < bits * 1.25, name


@pytest.mark.parametrize(
    "name", [each for each in _ENTRIES if read_words(each.rpartition("/")[2].lower()).method]
)
def test_the_unquantized_model_of_a_bundled_checkpoint_is_another_or_in_16_bit(name: str) -> None:
    owner, _, short = name.rpartition("/")
    bare = f"{owner}/{strip_quantization(short.lower())}"
    model, entry = _found(bare), read_entry(name)
    if model is None or bare.rpartition("/")[2] in _SHORT:
        return
    assert model.quantization is None
    assert stored_bytes(model) == pytest.approx(2 * entry.num_parameters, rel=0.01)
    if read_words(short.lower()).method not in UNQUANTIZED:
        assert any("16 bit" in note or "taken to have the config" in note for note in model.notes)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("Qwen/Qwen3-30B-A3B-Thinking-2507", 56.9), ("me/Qwen3-30B-A3B-Thinking-2507-tuned", 56.9),
     ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B", 224.8), ("poolside/Laguna-S-2.1", 219.0)],
)  # fmt: skip
def test_a_model_of_which_only_a_quantization_is_bundled_is_in_16_bit(
    name: str, gib: float
) -> None:
    model = find_model(name)
    assert model.quantization is None
    assert stored_bytes(model) / 2**30 == pytest.approx(gib, rel=0.01)
    assert "16 bit" in model.notes[-1]


@pytest.mark.parametrize(
    ("name", "base"),
    [("me/gpt-oss-20b-tuned", "openai/gpt-oss-20b"), ("deepseek-ai/DeepSeek-V3.2-Base", "deepseek-ai/DeepSeek-V3.2"),
     ("me/Ministral-3-8B-Instruct-2512-tuned", "mistralai/Ministral-3-8B-Instruct-2512")],
)  # fmt: skip
def test_a_variant_of_a_model_whose_own_files_are_quantized_is_refused_unless_it_says_its_form(
    name: str, base: str
) -> None:
    with pytest.raises(UsageError, match="does not say what its own are in") as error:
        find_model(name)
    assert base in (error.value.hint or "")
    assert (f"{name}-BF16" in (error.value.hint or "")) is name.startswith("me/")
    assert find_model(f"{name}-BF16").quantization is None


def test_a_merge_of_models_in_blocks_of_8_bit_is_stored_in_them() -> None:
    merged, base = (
        find_model(name)
        for name in ("tngtech/DeepSeek-TNG-R1T2-Chimera", "deepseek-ai/DeepSeek-R1")
    )
    assert merged.quantization == base.quantization is not None


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        *((f"miromind-ai/MiroThinker-v1.0-{size}", 262144) for size in ("8B", "30B", "72B")),
        *((f"nvidia/OpenReasoning-Nemotron-{size}", 131072) for size in ("1.5B", "7B", "14B", "32B")),
    ],
)  # fmt: skip
def test_a_fine_tune_for_longer_texts_allows_them(name: str, longest: int) -> None:
    assert find_model(name).max_model_len == longest


def test_a_fine_tune_whose_config_was_not_read_says_where_its_length_is_from() -> None:
    words = "its config.json was not read: the longest request is that of"
    said, unsaid = find_model("nvidia/OpenMath-Nemotron-7B"), find_model("Qwen/Qwen3-8B")
    assert any(words in note for note in said.notes)
    assert not any(words in note for note in unsaid.notes)


def test_a_classifier_of_many_languages_has_their_vocabulary() -> None:
    parameters = find_model("meta-llama/Prompt-Guard-86M").num_parameters
    assert parameters == pytest.approx(279e6, rel=0.005)
