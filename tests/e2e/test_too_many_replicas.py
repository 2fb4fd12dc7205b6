"""More replicas than the machine has memory for, asked for by its own user. None of them is started."""

from __future__ import annotations

import re

import pytest

from .conftest import Stack

pytestmark = pytest.mark.slow

CREATE = ("deployment", "create", "x", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu")
LARGE = "--kv-cache-memory-bytes=400000000 --max-num-seqs=64"
"""What makes a replica take 0.9 GiB, so that 100 are more than most machines have room for."""


def ask(stack: Stack, replicas: int) -> tuple[int, str]:
    """Ask for so many without having them made."""
    more = ("--gpu-count", "1", "--replicas", str(replicas), "--dry-run")
    done = stack.exo(*CREATE, *more, "--inference-engine-params", LARGE, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_number_that_a_refusal_names_fits_and_one_more_does_not(stack: Stack) -> None:
    stack.exo("model", "create", "exo/tiny-chat", "--wait", check=False)
    for _ in range(5):  # what other programs take changes meanwhile
        code, text = ask(stack, 100)
        if code == 0:
            assert "at most" not in text, "a machine with more than 90 GiB free"
            return
        found = re.search(r"at most (\d+)\s+fit", text)
        assert found is not None, text
        most = int(found[1])
        if ask(stack, most)[0] == 0 and ask(stack, most + 1)[0] == 1:
            return
    pytest.fail(f"the number that a refusal names was never right: {text}")
