"""Files that a stranger made to take the reader down: each is refused before anything is computed."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.foreign_files.mutations import SEED_CONFIG
from exo_inference.foreign_files import (
    ForeignFileError,
    bounded_reads,
    check_model,
    describe_model,
)
from exo_inference.foreign_files.errors import shown

SIZES = {"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 32, "hidden_size": 8}


def weights(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(**changed: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(SIZES))
    (directory / "model.safetensors").write_bytes(weights(tensor(), bytes(8)))
    return directory


def put(name: str, content: bytes) -> Callable[[Path], None]:
    def attack(model: Path) -> None:
        (model / name).write_bytes(content)

    return attack


def replaced_by(name: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def attack(model: Path) -> None:
        (model / name).unlink()
        make(model / name)

    return attack


def config(**changed: Any) -> Callable[[Path], None]:
    return put("config.json", json.dumps({**SIZES, **changed}).encode())


def header(raw: bytes | dict[str, Any], data: bytes = bytes(8)) -> Callable[[Path], None]:
    return put("model.safetensors", weights(raw, data))


DIGITS = b"9" * 4000
LONG_SHAPE = b"[" + b",".join([DIGITS] * 1000) + b"]"
ENTRY = b'{"w":{"dtype":"F32","shape":%s,"data_offsets":[0,8]}}'
ATTACKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "shape of thousands of digits": (header(ENTRY % LONG_SHAPE), "a number of 4000 digits"),
    "shape of large sizes": (header(tensor(shape=[2**62] * 60)), r"more than 2\^63 elements"),
    "rank of 100,000": (header(tensor(shape=[1] * 100_000)), "entry of tensor 'w' is malformed"),
    "nested shape": (header(ENTRY % (b"[" * 200_000)), "nested deeper than 64 levels"),
    "nested entry": (header(tensor(shape=[[[2]]])), "entry of tensor 'w' is malformed"),
    "endless offset": (header(tensor(dtype="X", data_offsets=[0, float("inf")])), "Infinity"),
    "half an offset": (header(tensor(data_offsets=[0, 8.0])), "is malformed"),
    "fraction of an offset": (header(tensor(data_offsets=[1.5, 9.5])), "is malformed"),
    "negative offset": (header(tensor(data_offsets=[-8, 0])), "is malformed"),
    "true as a size": (header(tensor(shape=[True, 2])), "is malformed"),
    "three offsets": (header(tensor(data_offsets=[0, 4, 8])), "is malformed"),
    "metadata that is a list": (header({**tensor(), "__metadata__": []}), "__metadata__ is a list"),
    "header over the limit": (
        lambda model: put("model.safetensors", struct.pack("<Q", 20_000_001) + bytes(20_000_002))(
            model
        ),
        "header has 20000001 bytes, expected at most",
    ),
    "header of empty lists": (
        lambda model: header(b'{"a":[' + b"[]," * 4_100_000 + b"[]]}")(model),
        "more than 4000000 values",
    ),
    "named pipe as configuration": (replaced_by("config.json", os.mkfifo), "is a named pipe"),
    "named pipe as weights": (replaced_by("model.safetensors", os.mkfifo), "is a named pipe"),
    "named pipe as index": (
        lambda model: os.mkfifo(model / "model.safetensors.index.json"),
        "is a named pipe",
    ),
    "device as configuration": (
        replaced_by("config.json", lambda path: path.symlink_to("/dev/zero")),
        "is a device",
    ),
    "directory as weights": (replaced_by("model.safetensors", Path.mkdir), "is a directory"),
    "layers": (config(num_hidden_layers=10**9), "num_hidden_layers in .* is 1000000000"),
    "nested layers": (config(text_config={"num_hidden_layers": 10**9}), "text_config.num_hidden_l"),
    "half a layer": (config(num_hidden_layers=1.5), "num_hidden_layers in .* is 1.5"),
    "negative layers": (config(num_hidden_layers=-1), "expected a whole number from 0 to 4096"),
    "endless vocabulary": (config(vocab_size=float("inf")), "vocab_size in .* is inf"),
    "vocabulary that is none": (config(vocab_size=float("nan")), "vocab_size in .* is nan"),
    "vocabulary of thousands of digits": (
        put("config.json", b'{"model_type":"llama","vocab_size":1%s}' % (b"0" * 4000)),
        "a number of 4001 digits",
    ),
    "vocabulary of 10^30": (config(vocab_size=10**30), "vocab_size in .* is 1000000"),
    "deep configuration": (put("config.json", b'{"a":' * 500), "nested deeper|is not JSON"),
    "deep and whole": (put("config.json", b'{"a":' * 90 + b"1" + b"}" * 90), "nested deeper than"),
    "large configuration": (
        lambda model: put("config.json", b" " * (16 * 2**20 + 1))(model),
        "larger than 16 MiB",
    ),
    "index that names numbers": (
        put("model.safetensors.index.json", b'{"weight_map":{"w":7}}'),
        "names 7, which is missing",
    ),
    "index that names a path": (
        put("model.safetensors.index.json", b'{"weight_map":{"w":"../../etc/passwd"}}'),
        "which is missing",
    ),
}


@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS.keys())
def test_attack_is_refused_with_the_reason(
    model: Path, attack: Callable[[Path], None], words: str
) -> None:
    check_model(model)  # right before
    attack(model)
    before = time.process_time()
    with pytest.raises(ForeignFileError, match=words) as caught:
        check_model(model)
    assert time.process_time() - before < 1.0  # of this process: the work is done elsewhere
    assert len(caught.value.text) < 1000
    assert caught.value.text.isprintable()


@pytest.mark.parametrize(("attack", "words"), ATTACKS.values(), ids=ATTACKS.keys())
def test_attack_costs_a_description_nothing(
    model: Path, attack: Callable[[Path], None], words: str
) -> None:
    attack(model)
    before = time.process_time()
    with contextlib.suppress(ForeignFileError):
        found = describe_model(model, "m")
        assert found.checkpoint_bytes is None or found.checkpoint_bytes <= 2**63
    assert time.process_time() - before < 1.0


@pytest.mark.parametrize(
    "text",
    ["\x1b]0;owned\x07", "\x1b[2J", "a\nb", "\x9b1m", "\u202eevil", "\ud800", "\x00"],
    ids=["title", "clear", "line", "C1", "right to left", "half a pair", "zero"],
)
def test_no_control_character_reaches_a_message(model: Path, text: str) -> None:
    for name, dtype in ((text, "F32"), ("w", text)):
        header({name: {"dtype": dtype, "shape": [3], "data_offsets": [0, 8]}})(model)
        with pytest.raises(ForeignFileError) as caught:
            check_model(model)
        assert caught.value.text.isprintable()


def test_a_folder_of_too_many_files_is_none_of_a_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reads, "MAX_FILES", 1)
    with pytest.raises(ForeignFileError, match="holds more than 1 files"):
        bounded_reads.list_files(model)


def test_foreign_pieces_are_cut_and_escaped() -> None:
    assert shown("a" * 1000) == "a" * 255 + "…"
    assert shown("\x1b" * 1000).startswith("\\x1b\\x1b")
    assert len(shown("\x1b" * 1000)) == 256
    assert shown(10**5000) == "a number of thousands of digits"
    assert shown([1] * 10**6) == "a list of 1000000 entries"


def test_what_models_really_hold_is_taken(model: Path) -> None:
    found = {
        **SIZES,
        "time_step_limit": [0.0, float("inf")],
        "rope_theta": 1e6,
        "model_max_length": 10**30,
        "sliding_window": None,
        "vision_config": {"num_heads": [3, 6], "hidden_size": 8.0},
    }
    (model / "config.json").write_text(json.dumps(found))
    header({**tensor(), "__metadata__": {"format": "pt"}})(model)
    assert [name for name, _ in check_model(model).files] == ["config.json", "model.safetensors"]


def test_of_gguf_files_name_and_size_are_looked_at_and_nothing_is_opened(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(SEED_CONFIG | {"quantization_config": None}))
    (model / "model.safetensors").unlink()
    with (model / "m-Q4_K_M.gguf").open("wb") as file:
        file.write(b"GGUF" + b"\xff" * 64)  # a version, and counts, beyond all files
        file.truncate(2**40)
    os.mkfifo(model / "n-Q4_K_M.gguf")
    by_name, by_size = describe_model(model, "m").notes[-2:]
    assert "Q4_K_M by its name" in by_name
    assert "more than its type explains" in by_size
    with pytest.raises(ForeignFileError, match=r"holds no \.safetensors file"):
        check_model(model)


def _of_gguf(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(SEED_CONFIG | {"quantization_config": None}))
    (model / "model.safetensors").unlink()


def _put_large(file: Path, num_bytes: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        opened.truncate(num_bytes)


def test_gguf_files_in_folders_are_looked_at(model: Path) -> None:
    _of_gguf(model)
    _put_large(model / "mmproj-F16.gguf", 2**20)
    for part in (1, 2):
        _put_large(model / "Q8_0" / f"m-Q8_0-0000{part}-of-00002.gguf", 2**32)
    found = describe_model(model, "m")
    assert any("Q8_0 by its name" in note for note in found.notes)
    assert any("8.00 GiB, more than its type explains" in note for note in found.notes)


def test_the_directorys_own_gguf_file_wins_over_those_in_its_folders(model: Path) -> None:
    _of_gguf(model)
    _put_large(model / "draft" / "tiny-Q2_K.gguf", 2**34)
    _put_large(model / "m-F16.gguf", 2**33)
    notes = describe_model(model, "m").notes
    assert any("those of m-F16.gguf" in note for note in notes)
    assert any("m-F16.gguf is planned, not draft/tiny-Q2_K.gguf" in note for note in notes)


def test_of_several_gguf_files_the_largest_is_planned_and_named(model: Path) -> None:
    _of_gguf(model)
    _put_large(model / "a-Q2_K.gguf", 2**32)
    _put_large(model / "b-Q8_0.gguf", 2**33)
    _put_large(model / "c-Q4_K_M.gguf", 2**31)
    notes = describe_model(model, "m").notes
    assert any("b-Q8_0.gguf is planned, not a-Q2_K.gguf, c-Q4_K_M.gguf" in note for note in notes)
    for part in (1, 2):  # which the engine's image prefers
        _put_large(model / "Q6_K" / f"m-Q6_K-0000{part}-of-00002.gguf", 2**30)
    assert any("those of Q6_K/m-Q6_K-00001" in note for note in describe_model(model, "m").notes)


@pytest.mark.parametrize("kind", ["dangling", "loop", "folder", "pipe", "device", "short"])
def test_what_is_no_gguf_file_is_refused_where_it_is_alone_and_else_passed_over(
    model: Path, tmp_path: Path, kind: str
) -> None:
    _of_gguf(model)
    file = model / "a-Q4_K_M.gguf"
    (tmp_path / "elsewhere").mkdir()
    targets = {"dangling": "nowhere", "loop": file.name, "device": "/dev/zero"}
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "short":
        file.write_bytes(b"GGUF" + bytes(19))
    else:
        file.symlink_to(targets.get(kind, tmp_path / "elsewhere"))
    with pytest.raises(ForeignFileError, match=r"^a-Q4_K_M\.gguf (cannot be read|is no|has 23)"):
        describe_model(model, "m", is_strict=True)
    _put_large(model / "folder" / "tiny-Q2_K.gguf", 2**20)
    with pytest.raises(ForeignFileError, match=r"^a-Q4_K_M\.gguf "):
        describe_model(
            model, "m", is_strict=True
        )  # not what lies in a folder, in the place of the model's own
    _put_large(model / "b-Q8_0.gguf", 2**32)
    assert any("those of b-Q8_0.gguf" in note for note in describe_model(model, "m").notes)


@pytest.mark.parametrize("name", ["mmproj-F16.gguf", "MMPROJ-F16.gguf"])
def test_an_image_encoder_alone_is_no_model_in_a_gguf_file(model: Path, name: str) -> None:
    _of_gguf(model)
    _put_large(model / name, 2**30)
    found = describe_model(model, "m", is_strict=True)
    assert not any(name in note for note in found.notes)


def test_a_missing_part_of_a_gguf_file_is_told(model: Path) -> None:
    _of_gguf(model)
    for part in (1, 3):
        _put_large(model / f"m-Q8_0-0000{part}-of-00003.gguf", 2**30)
    missing = r"m-Q8_0-00002-of-00003\.gguf is missing: 2 of 3 parts"
    with pytest.raises(ForeignFileError, match=missing):
        describe_model(model, "m", is_strict=True)
    (model / "m-Q8_0-00002-of-00003.gguf").symlink_to("nowhere")
    with pytest.raises(ForeignFileError, match=r"m-Q8_0-00002-of-00003\.gguf cannot be read"):
        describe_model(model, "m", is_strict=True)


def test_no_more_folders_are_looked_through_than_a_model_has(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _of_gguf(model)
    _put_large(model / "a" / "b" / "c" / "d" / "e" / "deep-Q8_0.gguf", 2**32)
    _put_large(tmp_path / "elsewhere" / "linked-Q8_0.gguf", 2**32)
    (model / "link").symlink_to(tmp_path / "elsewhere")
    (model / "round").symlink_to(model)
    (model / ".hidden").mkdir()
    assert describe_model(model, "m").quantization is None
    for number in range(40):
        (model / f"many{number:02}").mkdir()
    _put_large(model / "many39" / "late-Q8_0.gguf", 2**32)
    assert describe_model(model, "m").quantization is not None
    monkeypatch.setattr(bounded_reads, "MAX_FILES", 45)
    for number in range(39):
        (model / f"many{number:02}" / "file").touch()
    assert len(bounded_reads.list_tree(model)) <= 45


def test_as_many_folders_are_looked_through_as_the_bound_says(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        (model / f"f{number}").mkdir()
        (model / f"f{number}" / "a").touch()
    monkeypatch.setattr(bounded_reads, "MAX_FOLDERS", 4)
    inside = [path for path in bounded_reads.list_tree(model) if path.endswith("/a")]
    assert inside == ["f0/a", "f1/a", "f2/a"]  # the directory itself is the fourth
