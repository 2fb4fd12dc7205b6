"""The flags of llama-server whose values are more than words and numbers."""

from __future__ import annotations

import pytest

from exo_inference.engines import get_engine
from exo_inference.engines.cluster_engine import ClusterEngine


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("--ctx-size", "-1", "'-1', expected a whole number, at least 0"),
        ("--ctx-size", "1" + "0" * 17, "'100000000000000000', expected a whole number"),
        ("--ctx-size", "nan", "'nan', expected a whole number"),
        ("-c", "-5", "'-5', expected a whole number"),
        ("--parallel", "0", "'0', expected 1 or more, up to 256, or -1"),
        ("--parallel", "257", "'257', expected 1 or more"),
        ("--parallel", "-2", "'-2', expected 1 or more"),
        ("--batch-size", "0", "'0', expected a whole number, at least 1"),
        ("--kv-unified-per-slot", "0", "'0', expected a whole number, at least 1"),
        ("--n-cpu-moe", "-3", "'-3', expected a whole number, at least 0"),
        ("--cache-type-k", "q2_0", "'q2_0', expected one of: f32, f16"),
        ("--gpu-layers", "most", "'most', expected a number, auto or all"),
        ("--gpu-layers", "٣", "'٣', expected a number, auto or all"),
        ("-ngl", "AUTO", "'AUTO', expected a number, auto or all"),
        ("--tensor-split", "nan,1", "'nan,1', expected the shares of GPUs, such as 3,1"),
        ("--tensor-split", "0,0", "'0,0', expected the shares"),
        ("--tensor-split", "-1,2", "'-1,2', expected the shares"),
        ("--tensor-split", "1e308,1e308", "'1e308,1e308', expected the shares"),
        ("--tensor-split", "٣,1", "'٣,1', expected the shares"),
        ("--tensor-split", ",1", "',1', expected the shares"),
        ("--tensor-split", "", "'', expected the shares"),
        ("--tensor-split", ",".join(["1"] * 16), "expected the shares"),
        ("--tensor-split", "1," * 10**6, "expected the shares"),
        ("--fit-target", "much", "'much', expected MiB, or MiB of each GPU"),
        ("--fit-target", "٣", "'٣', expected MiB"),
        ("--fit-target", ",".join(["1"] * 16), "expected MiB"),
        ("--override-tensor", "(a+)+$", "'(a+)+$', expected PATTERN=BUFFER, such as exps=CPU"),
        ("--override-tensor", "a=CPU,b", "'a=CPU,b', expected PATTERN=BUFFER"),
    ],
)
def test_values_that_no_start_has_are_told(flag: str, text: str, words: str) -> None:
    reading = get_engine("llama-cpp").read([flag, text])
    (problem,) = reading.problems
    assert problem.detail.startswith(f"{flag} is ")
    assert words in problem.detail
    assert (problem.index, problem.flag) == (1, flag)
    assert not reading.values


@pytest.mark.parametrize(
    ("flag", "text", "value"),
    [
        ("gpu-layers", "auto", -1),
        ("gpu-layers", "all", -2),
        ("gpu-layers", "-7", -7),
        ("gpu-layers", "20", 20),
        ("parallel", "-1", -1),
        ("parallel", "256", 256),
        ("tensor-split", "3,1", (3.0, 1.0)),
        ("tensor-split", "3/.5/", (3.0, 0.5)),
        ("fit-target", "1024", (1024,)),
        ("fit-target", "1024,512", (1024, 512)),
        ("override-tensor", "exps=CPU,a=b=c", (("exps", "CPU"), ("a", "b=c"))),
    ],
)
def test_values_are_read_as_llama_server_reads_them(flag: str, text: str, value: object) -> None:
    reading = get_engine("llama-cpp").read([f"--{flag}", text])
    assert (reading.problems, reading.values) == ((), {flag: value})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-sm", "none", "-mg", "2"), "-mg is 2, expected a whole number from 0 to 1; change it"),
        (("--tensor-split", "0,0,1"), "--tensor-split gives none of these GPUs a share"),
        (("--main-gpu", "2"), ""),
        (("--tensor-split", "0,1"), ""),
    ],
)
def test_places_that_a_replica_does_not_have_are_refused(
    flags: tuple[str, ...], words: str
) -> None:
    engine = get_engine("llama-cpp")
    assert isinstance(engine, ClusterEngine)
    problems = engine.check_sizes(engine.read(flags), 2)
    assert [(each.reason, each.detail[: len(words)]) for each in problems] == (
        [("model", words)] if words else []
    )
