"""One GGUF file of a repository by its type: which files it means, what is fetched, what an engine then finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exo_inference.errors import HubError
from exo_inference.hub.architecture import fetch_architecture
from exo_inference.hub.base import ModelFile, ModelUnusable
from exo_inference.hub.gguf_files import choose_gguf
from exo_inference.hub.huggingface import HuggingFaceSource
from exo_inference.hub.huggingface_files import choose_files
from exo_inference.model_description import CONFIG_NAME
from exo_inference.planner import load_models

from .hub_server import COMMIT, HubServer, Repo
from .test_volume import run

PARTS = tuple(f"Q8_0/big-Q8_0-{n:05}-of-00003.gguf" for n in (1, 2, 3))
NAMES = (
    "README.md", "config.json", "tokenizer.json", "big-Q4_K_M.gguf", "big-UD-Q4_K_M.gguf", "big-IQ4_XS.gguf",
    "big-BF16.gguf", "mmproj-big-BF16.gguf", *PARTS, "Big-MXFP4.gguf", "chat-q2_k.gguf", "base-q2_k.gguf", "odd.gguf",
)  # fmt: skip
FILES = [ModelFile(name, 1000 + 100_000_000 * len(name)) for name in NAMES]
QWEN = "Qwen/Qwen3-8B"


def chosen(tag: str, files: list[ModelFile] = FILES) -> set[str]:
    return {file.path for file in choose_files(f"acme/big-GGUF:{tag}", files)} - {"config.json"}


@pytest.mark.parametrize(
    ("tag", "wanted"),
    [
        ("Q4_K_M", {"big-Q4_K_M.gguf"}),
        ("q4_k_m", {"big-Q4_K_M.gguf"}),
        ("UD-Q4_K_M", {"big-UD-Q4_K_M.gguf"}),
        ("BF16", {"big-BF16.gguf"}),
        ("mxfp4", {"Big-MXFP4.gguf"}),
        ("Q8_0", set(PARTS)),
        ("chat-q2_k", {"chat-q2_k.gguf"}),
        ("odd", {"odd.gguf"}),
    ],
)
def test_a_type_means_one_file(tag: str, wanted: set[str]) -> None:
    assert chosen(tag) == wanted
    assert CONFIG_NAME in {file.path for file in choose_files(f"acme/big-GGUF:{tag}", FILES)}


@pytest.mark.parametrize(
    ("tag", "message", "hint"),
    [
        ("Q6_K", "holds no GGUF file of the type 'Q6_K'", "acme/big-GGUF:Q4_K_M (1.50 GB)"),
        ("Q6_K", "holds no GGUF file of the type 'Q6_K'", "acme/big-GGUF:Q8_0 (9.90 GB)"),
        ("Q6_K", "holds no GGUF file of the type 'Q6_K'", "acme/big-GGUF:odd ("),
        ("Q4", "holds no GGUF file of the type 'Q4'", "acme/big-GGUF:UD-Q4_K_M"),
        ("q2_k", "holds 2 GGUF files of the type 'q2_k'", "acme/big-GGUF:base-q2_k"),
    ],
)
def test_what_there_is_is_listed_where_no_file_is_meant(tag: str, message: str, hint: str) -> None:
    with pytest.raises(ModelUnusable) as error:
        chosen(tag)
    assert message in error.value.message
    assert hint in (error.value.hint or "")
    assert "mmproj" not in (error.value.hint or "")


def test_a_repository_of_gguf_files_alone_says_how_one_is_named() -> None:
    with pytest.raises(ModelUnusable, match="of which one is fetched by its type") as error:
        choose_files("acme/big-GGUF", FILES)
    assert "acme/big-GGUF:IQ4_XS (1.50 GB)" in (error.value.hint or "")
    assert "llama-cpp" in (error.value.hint or "")


def test_a_long_list_is_cut() -> None:
    many = [ModelFile(f"m-{n}.gguf", 0) for n in range(5000)]
    with pytest.raises(ModelUnusable) as error:
        choose_gguf("acme/big:Q4_K_M", many)
    assert "and 4976 more" in (error.value.hint or "")
    assert len(error.value.hint or "") < 2000


def test_files_without_gguf_parts_that_lack_and_unsafe_names_are_refused() -> None:
    with pytest.raises(ModelUnusable, match="holds no GGUF file"):
        chosen("Q4_K_M", [ModelFile("model.safetensors", 5)])
    with pytest.raises(ModelUnusable, match="holds 2 of 3 parts"):
        chosen("Q8_0", [file for file in FILES if file.path != PARTS[1]])
    with pytest.raises(ModelUnusable, match="unsafe name"):
        chosen("Q4_K_M", [*FILES, ModelFile("../x-Q4_K_M.gguf", 5)])


@pytest.fixture
def repository(hub: HubServer) -> HubServer:
    files = {name: b"GGUF" + bytes([n]) * (5000 + n) for n, name in enumerate(NAMES[3:])}
    hub.repos["acme/big-GGUF"] = Repo(files)
    hub.repos["acme/qwen-GGUF"] = Repo(
        {**files, "config.json": json.dumps(load_models()[QWEN]["config"]).encode()}
    )
    return hub


@pytest.mark.parametrize("tag", ["Q4_K_M", "Q8_0"], ids=["one", "parts"])
async def test_one_file_or_its_parts_are_fetched(
    source: HuggingFaceSource, repository: HubServer, directory: Path, tag: str
) -> None:
    model = await source.resolve(f"acme/big-GGUF:{tag}", revision=None, token=None)
    assert (model.source, model.revision) == (f"acme/big-GGUF:{tag}", COMMIT)
    assert model.size_bytes == sum(
        len(repository.repos["acme/big-GGUF"].files[f.path]) for f in model.files
    )
    assert sum(repository.sent.values()) == 0, "a size is known before anything is fetched"
    for _ in range(2):  # the second time everything is there
        await source.fetch(model, directory, token=None, progress=lambda present: None)
    found = {p.relative_to(directory).as_posix() for p in directory.rglob("*.gguf")}
    assert found == {file.path for file in model.files}
    assert set(repository.sent) == found


async def test_what_is_no_gguf_file_is_refused(
    source: HuggingFaceSource, repository: HubServer, directory: Path
) -> None:
    repository.repos["acme/big-GGUF"].files["big-Q4_K_M.gguf"] = b"<html>" * 2000
    model = await source.resolve("acme/big-GGUF:Q4_K_M", revision=None, token=None)
    with pytest.raises(ModelUnusable, match=r"big-Q4_K_M\.gguf is no GGUF file"):
        await source.fetch(model, directory, token=None, progress=lambda present: None)


async def test_the_job_of_a_cluster_fetches_it(
    repository: HubServer, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", repository.url)
    report = directory.parent.parent / "report"
    code, lines, err = await run(
        f"--directory={directory}", f"--report={report}", "--", "acme/big-GGUF:Q8_0"
    )
    assert code == 0, err
    assert lines[0]["state"] == "resolved"
    assert {p.name for p in directory.rglob("*.gguf")} == {Path(part).name for part in PARTS}


async def test_a_model_is_planned_by_the_config_beside_its_file(repository: HubServer) -> None:
    found = await fetch_architecture("acme/qwen-GGUF:Q8_0", endpoint=repository.url)
    assert found.name == "acme/qwen-GGUF:Q8_0"
    assert found.quantization is not None
    assert found.quantization.default.name == "gguf-Q8_0"
    with pytest.raises(HubError, match="what GGUF files of the type UD-Q4_K_XL take is not known"):
        await fetch_architecture("acme/qwen-GGUF:UD-Q4_K_XL", endpoint=repository.url)


@pytest.mark.parametrize(
    "paths",
    [
        ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00005-of-00002.gguf"),
        ("m-Q8_0-00001-of-00001.gguf", "m-Q8_0-00001-of-00002.gguf"),
        ("m-Q8_0.gguf", "m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_parts_are_all_of_one_file(paths: tuple[str, ...]) -> None:
    with pytest.raises(ModelUnusable, match="parts of that GGUF file"):
        chosen("Q8_0", [ModelFile(each, 5) for each in paths])


@pytest.mark.parametrize(
    "path", [".exo/partial/m-Q8_0.gguf", "a\x1b[2Jb.gguf", "\ud800.gguf", "a" * 600 + ".gguf"]
)
def test_names_that_cannot_be_written_or_told_are_refused(path: str) -> None:
    with pytest.raises(ModelUnusable, match="unsafe name") as refused:
        chosen("Q8_0", [ModelFile("m-Q8_0.gguf", 5), ModelFile(path, 5)])
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 400


def test_a_repository_of_very_many_files_is_refused_and_one_of_many_is_looked_through_once() -> (
    None
):
    many = [ModelFile(f"a{number}-Q8_0.gguf", number) for number in range(20_000)]
    with pytest.raises(ModelUnusable, match="20000 GGUF files of the type"):
        chosen("Q8_0", many)
    with pytest.raises(ModelUnusable, match="20,001 files"):
        chosen("Q8_0", [*many, ModelFile("b", 1)])


def test_only_names_that_can_be_asked_for_are_told() -> None:
    files = [
        ModelFile(path, 5)
        for path in ("Q8_0/model.gguf", "Q6_K/model.gguf", "with blank.gguf", "x+y.gguf")
    ]
    with pytest.raises(ModelUnusable) as refused:
        chosen("Q2_K", files)
    assert refused.value.hint is not None
    assert "one of: acme/big-GGUF:Q6_K, acme/big-GGUF:Q8_0." in refused.value.hint.replace(
        " (0.00 GB)", ""
    )
    assert chosen("Q8_0", files) == {"Q8_0/model.gguf"}
