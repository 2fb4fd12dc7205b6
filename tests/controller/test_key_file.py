"""A key file that is damaged is told as such, with the next step, and is left as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exo_inference.controller.secret_box import _read_or_make_key
from exo_inference.errors import ConfigurationError


@pytest.mark.parametrize("content", ["damaged", "", "AAAA", "\N{SNOWMAN}", "A" * 45])
def test_damaged_key_file_is_named_with_the_next_step(tmp_path: Path, content: str) -> None:
    path = tmp_path / "secret.key"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="is damaged: found") as caught:
        _read_or_make_key(path)
    assert "Put the original file back" in caught.value.text
    assert path.read_text() == content


def test_a_named_pipe_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "secret.key")
    with pytest.raises(ConfigurationError, match="it is not a regular file"):
        _read_or_make_key(tmp_path / "secret.key")
