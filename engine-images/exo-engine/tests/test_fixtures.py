"""What the tests' own fixtures promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parent / "conftest.py"
A_TORCH = """
_num_threads = 4
def get_num_threads(): return _num_threads
def set_num_threads(number): globals()["_num_threads"] = number
"""
TESTS = """
def test_of_an_engine_is_the_first_to_import_torch():
    import torch
    torch.set_num_threads(97)

def test_that_follows_has_as_many_threads_as_a_new_process():
    import torch
    assert torch.get_num_threads() == 4
    torch.set_num_threads(98)

def test_after_that_has_them_too():
    import torch
    assert torch.get_num_threads() == 4
"""


def test_threads_of_a_test_that_is_the_first_to_import_torch_are_not_those_of_the_next(tmp_path):
    """With a module in its place, which takes no time to import."""
    (tmp_path / "torch.py").write_text(A_TORCH)
    (tmp_path / "conftest.py").symlink_to(CONFTEST)
    (tmp_path / "test_threads.py").write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "3 passed" in run.stdout
