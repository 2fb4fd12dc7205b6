from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from exo_inference.errors import UsageError
from exo_inference.resources.manifest_files import MAX_FILE_BYTES, load_manifests
from exo_inference.resources.yaml import ManifestError

from .test_yaml import DEPLOYMENT, MODEL, changed


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(
        changed("gpuType", "gpuTyp").replace("replicas: 2", "replicas: x")
    )
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b.yml").write_text(MODEL.replace("source", "sauce"))
    (tmp_path / "README.md").write_text("not a manifest")
    with pytest.raises(ManifestError) as caught:
        load_manifests([str(tmp_path)])
    found = [(Path(p.file).name, p.line) for p in caught.value.problems]
    assert found == [("a.yaml", 4), ("a.yaml", 6), ("a.yaml", 8), ("b.yml", 4), ("b.yml", 5)]
    assert caught.value.exit_code == 2
    assert "5 problems in the manifests; nothing was changed" in caught.value.message


def test_duplicates_are_found_across_files(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(DEPLOYMENT + "---\n" + MODEL)
    (tmp_path / "b.yaml").write_text(MODEL.replace("tiny}", "other}") + "---\n" + DEPLOYMENT)
    with pytest.raises(ManifestError) as caught:
        load_manifests([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])
    messages = [p.message for p in caught.value.problems]
    assert len(messages) == 2
    assert "a second InferenceModel with spec.source exo/tiny-chat; the first is at" in messages[0]
    assert messages[1].endswith("a.yaml:1")


def test_file_named_twice_is_read_once(tmp_path: Path):
    file = tmp_path / "a.yaml"
    file.write_text(MODEL)
    assert len(load_manifests([str(file), str(tmp_path)])) == 1


def test_standard_input_is_a_dash():
    assert load_manifests(["-"], stdin=MODEL)[0].file == "<stdin>"


def test_what_says_no_size_is_read_no_further_than_a_file(tmp_path: Path):
    with pytest.raises(ManifestError, match="/dev/zero:1: cannot be read: it is larger than"):
        load_manifests(["/dev/zero"])
    with pytest.raises(ManifestError, match="<stdin>:1: cannot be read: it is larger than"):
        load_manifests(["-"], stdin="#" * (MAX_FILE_BYTES + 1))
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UsageError, match="there is no InferenceModel"):
        load_manifests([str(tmp_path)])  # not waited for


def test_a_pipe_that_is_named_is_read(tmp_path: Path):
    """As a shell makes one of the output of another program."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(MODEL.replace("\n", "\r\n")))
    writer.start()
    (found,) = load_manifests([str(pipe)])
    writer.join()
    assert found.file == str(pipe)


def test_unreadable_files_are_named(tmp_path: Path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ManifestError) as caught:
        load_manifests([str(tmp_path), str(tmp_path / "none.yaml")])
    messages = [p.message for p in caught.value.problems]
    assert "utf-8" in messages[0]
    assert "larger than" in messages[1]
    assert messages[2] == "cannot be read: No such file or directory"


def test_empty_directory_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="no InferenceModel and no InferenceDeployment"):
        load_manifests([str(tmp_path)])
