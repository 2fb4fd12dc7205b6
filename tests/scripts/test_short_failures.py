"""What `.ci/run` prints in the end of steps that failed, of a log as pytest and mypy write them."""

from __future__ import annotations

import subprocess
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / ".ci" / "short-failures"
LOG = """\
==================================== ERRORS ====================================
_________________________ ERROR at setup of test_e ____________________________
E   ValueError: no fixture
=================================== FAILURES ===================================
____________________________ test_x[four GPUs.a] _______________________________
[gw1] linux -- Python 3.11.7
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _
E           AssertionError: why
E           assert 1 == 9
_________________________________ test_x_long __________________________________
E   OSError: other
_ TestK.test_m _
E     assert {'a': 1} == {'a': 2}
=========================== short test summary info ============================
ERROR tests/a.py::test_e - ValueError: no fixture
FAILED tests/a.py::test_x[four GPUs.a] - AssertionError: why
assert 1 == 9
FAILED tests/a.py::test_x_long - OSError: other
FAILED tests/a.py::TestK::test_m - assert {'a': 1} == {'a': 2}
FAILED tests/a.py::test_of_a_worker_that_died
5 failed in 2.42s
"""
WANTED = """\
ERROR tests/a.py::test_e - ValueError: no fixture
E   ValueError: no fixture
FAILED tests/a.py::test_x[four GPUs.a] - AssertionError: why
E           AssertionError: why
FAILED tests/a.py::test_x_long - OSError: other
E   OSError: other
FAILED tests/a.py::TestK::test_m - assert {'a': 1} == {'a': 2}
E     assert {'a': 1} == {'a': 2}
FAILED tests/a.py::test_of_a_worker_that_died
"""


def test_each_failure_is_told_with_the_first_line_of_its_error(tmp_path: Path) -> None:
    (tmp_path / "tests").write_text(LOG)
    lines = [f"a.py:{number}: error: wrong" for number in range(12)]
    (tmp_path / "lint").write_text("\n".join(lines) + "\n")
    logs = [str(tmp_path / name) for name in ("tests", "lint")]
    told = subprocess.run([PROGRAM, *logs], capture_output=True, text=True, check=True).stdout
    assert told == WANTED + "\n".join(lines[-10:]) + "\n"
