"""What `--simulate-gpus` may say."""

from __future__ import annotations

import pytest

from exo_inference.errors import UsageError
from exo_inference.planner import find_gpu
from exo_inference.simulated_gpus import format_simulated_gpus, parse_simulated_gpus


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("gpua5000=4,gpurtx6000pro=8", "gpua5000=4,gpurtx6000pro=8"),
        (" gpua5000 = 4 , gpu3=1 ", "gpua5000=4,gpu3=1"),
        ("H100=8", "h100=8"),
        ("RTX A5000=2", "gpua5000=2"),
        ("GPUB300=1", "gpub300=1"),
        ("none", ""),
        ("", ""),
    ],
)
def test_families_are_exoscales_or_the_users_own_word(text, canonical):
    gpus = parse_simulated_gpus(text)
    assert format_simulated_gpus(gpus) == canonical
    assert parse_simulated_gpus(canonical) == gpus


def test_every_family_has_the_planners_figures():
    (gpus,) = parse_simulated_gpus("H100=8")
    assert gpus.gpu == find_gpu("h100")
    assert gpus.count == 8


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpua5000", "'gpua5000', expected FAMILY=COUNT"),
        ("gpua5000=", "expected FAMILY=COUNT"),
        ("=4", "expected FAMILY=COUNT"),
        ("gpua5000=4,", "'', expected FAMILY=COUNT"),
        ("gpua5000=0", "'0' for gpua5000, expected a number from 1 to 64"),
        ("gpua5000=65", "'65'"),
        ("gpua5000=-1", "'-1'"),
        ("gpua5000=two", "'two'"),
        ("gpua5000=1=2", "'1=2'"),
        ("gpu9=1", "no GPU 'gpu9'"),
        ("cpu=1", "no GPU 'cpu'"),
        ("gpua5000=1,rtx-a5000=2", "RTX A5000.* twice"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_reason(text, complaint):
    with pytest.raises(UsageError, match=complaint) as raised:
        parse_simulated_gpus(text)
    assert raised.value.hint
