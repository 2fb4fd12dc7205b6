"""What a model is for, by its files and by flags; and what is refused with the key at fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exo_engine.config import EngineConfig
from exo_engine.core.pooling.core import PoolingCore
from exo_engine.errors import ConfigurationError, EngineError, OutOfMemory
from exo_engine.models.pooling.config_file import is_pooling, read_pooling_spec

from .tiny_models import write_embedder

BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 130,
}
QWEN = {**BERT, "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 2, "head_dim": 16}
SCORER = {**BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
NORMALIZE = "sentence_transformers.models.Normalize"


def write(path: Path, config: dict[str, Any], modules: object = None, **files: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(modules))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return path


def pools(path: Path, kind: str, **settings: object) -> list[dict[str, str]]:
    """Write a pooling module and return the list that names it."""
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return [{"type": kind, "path": "1_Pooling"}]


def config_of(path: Path, **options: Any) -> EngineConfig:
    return EngineConfig(path, **options)


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (BERT, {}, True),
        (SCORER, {}, True),
        (QWEN, {}, False),
        (QWEN, {"runner": "pooling"}, True),
        (QWEN, {"convert": "embed"}, True),
        (QWEN, {"pooler": {"pooling_type": "LAST"}}, True),
        (BERT, {"runner": "generate"}, False),
        ({**QWEN, "architectures": ["Qwen3Model"]}, {}, True),
        ({**QWEN, "architectures": ["Qwen3ForSequenceClassification"]}, {}, True),
    ],
)
def test_kind_of_model_is_found(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], expected: bool
) -> None:
    assert is_pooling(config_of(write(tmp_path, config), **options)) is expected


def test_generating_architecture_with_a_pooling_module_embeds(tmp_path: Path) -> None:
    modules = pools(tmp_path, "sentence_transformers.models.Pooling", pooling_mode_lasttoken=True)
    config = config_of(write(tmp_path, QWEN, modules))
    assert is_pooling(config)
    spec = read_pooling_spec(config)
    assert (spec.task, spec.method, spec.is_activated) == ("embed", "last", False)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_files_of_sentence_transformers_are_honoured(tmp_path: Path, kind: str) -> None:
    modules = pools(tmp_path, "sentence_transformers.models.Pooling", pooling_mode_mean_tokens=True)
    texts = {"max_seq_length": 64, "do_lower_case": True}
    path = write(tmp_path, BERT, [*modules, {"type": NORMALIZE}])
    (path / f"sentence_{kind}_config.json").write_text(json.dumps(texts))
    spec = read_pooling_spec(config_of(path))
    assert (spec.method, spec.is_activated) == ("mean", True)
    assert (spec.max_length, spec.lowers_case) == (64, True)


def test_newer_word_for_pooling_is_read(tmp_path: Path) -> None:
    modules = pools(tmp_path, "sentence_transformers.sparse.Pooling", pooling_mode="cls")
    assert read_pooling_spec(config_of(write(tmp_path, BERT, modules))).method == "cls"


def test_flags_win_over_files(tmp_path: Path) -> None:
    modules = pools(tmp_path, "x.Pooling", pooling_mode_mean_tokens=True)
    pooler = {"seq_pooling_type": "CLS", "use_activation": True}
    spec = read_pooling_spec(config_of(write(tmp_path, BERT, modules), pooler=pooler))
    assert (spec.method, spec.is_activated) == ("cls", True)


@pytest.mark.parametrize(
    ("extra", "is_activated"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, True),
        ({"problem_type": "regression"}, False),
    ],
)
def test_function_behind_a_score_is_the_checkpoints(
    tmp_path: Path, extra: dict[str, Any], is_activated: bool
) -> None:
    spec = read_pooling_spec(config_of(write(tmp_path, {**SCORER, **extra})))
    assert (spec.task, spec.is_activated) == ("score", is_activated)


@pytest.mark.parametrize(
    ("extra", "labels", "is_exclusive"),
    [
        ({"id2label": {"1": "b", "0": "a", "2": "c"}}, ("a", "b", "c"), True),
        ({"id2label": None}, ("LABEL_0", "LABEL_1"), True),
        ({"id2label": None, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), True),
        (
            {"id2label": None, "problem_type": "multi_label_classification"},
            ("LABEL_0", "LABEL_1"),
            False,
        ),
        (
            {"id2label": None, "sbert_ce_default_activation_function": "x.Sigmoid"},
            ("LABEL_0", "LABEL_1"),
            False,
        ),
        ({}, ("LABEL_0",), False),
    ],
)
def test_labels_are_those_of_the_checkpoint(
    tmp_path: Path, extra: dict[str, Any], labels: tuple[str, ...], is_exclusive: bool
) -> None:
    spec = read_pooling_spec(config_of(write(tmp_path, {**SCORER, **extra})))
    assert (spec.labels, spec.is_exclusive) == (labels, is_exclusive)
    assert spec.task == ("score" if len(labels) == 1 else "classify")
    assert spec.num_dimensions == len(labels)


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({**BERT, "architectures": ["T5EncoderModel"]}, {"runner": "pooling"}, "architectures"),
        ({**BERT, "position_embedding_type": "relative_key"}, {}, "position_embedding_type"),
        ({**BERT, "hidden_act": "silu"}, {}, "hidden_act"),
        ({**BERT, "num_attention_heads": 7}, {}, "hidden_size"),
        ({**BERT, "num_hidden_layers": 10**6}, {}, "num_hidden_layers"),
        ({**BERT, "matryoshka_dimensions": [0]}, {}, "matryoshka_dimensions"),
        ({**SCORER, "id2label": {}}, {}, "id2label"),
        ({**SCORER, "id2label": {"0": "a", "2": "b"}}, {}, "numbers from 0"),
        ({**SCORER, "id2label": {"0": "a" * 257}}, {}, "at most 256 characters"),
        ({**SCORER, "id2label": None, "num_labels": 2**16 + 1}, {}, "id2label"),
        ({**SCORER, "sbert_ce_default_activation_function": "os.system"}, {}, "Identity"),
        ({**QWEN, "is_causal": False}, {"runner": "pooling"}, "is_causal"),
        (BERT, {"convert": "classify"}, "--convert"),
        (SCORER, {"convert": "embed"}, "--convert"),
        (BERT, {"pooler": {"max_embed_len": 3}}, "--pooler-config"),
        (BERT, {"pooler": {"pooling_type": "ALL"}}, "--pooler-config"),
        (BERT, {"pooler": {"use_activation": 1}}, "--pooler-config"),
        (SCORER, {"pooler": {"pooling_type": "MEAN"}}, "--pooler-config"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_pooling_spec(config_of(write(tmp_path, config), **options))


@pytest.mark.parametrize(
    "modules",
    [
        {"type": "x.Pooling"},
        [7],
        [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}],
        [{"type": "x.Pooling", "path": "../elsewhere"}],
        [{"type": "x.Pooling", "path": ""}],
        [{"type": "x.Pooling", "path": "missing"}],
        [{"type": "x.Pooling", "path": "1_\0"}],
        [{"type": "x.Pooling", "path": "1_\ud800"}],
        [{}] * 100,
        "[" * 50,
    ],
)
def test_hostile_list_of_modules_is_refused(tmp_path: Path, modules: object) -> None:
    with pytest.raises(EngineError):
        read_pooling_spec(config_of(write(tmp_path, BERT, modules)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pooling_mode": "max"},
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {"pooling_mode_mean_tokens": "yes"},
    ],
)
def test_pooling_that_is_not_known_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    modules = pools(tmp_path, "x.Pooling", **settings)
    with pytest.raises(EngineError, match="pooling_mode"):
        read_pooling_spec(config_of(write(tmp_path, BERT, modules)))


def test_positions_that_memory_cannot_hold_are_refused(tmp_path: Path) -> None:
    """There is no KV cache that bounds them, and a few bytes of weights ask for any number."""
    model = write_embedder(tmp_path, "qwen3-last")
    path = model.path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "max_position_embeddings": 2**31 - 1}))
    with pytest.raises(
        OutOfMemory, match=r"tables for texts of up to 2147483647 tokens take 256\.0 GiB"
    ):
        PoolingCore(config_of(model.path))
    PoolingCore(config_of(model.path, max_model_len=100))
