"""What a person who sets vLLM's flags is told."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.engines import VERSIONS, vllm
from exo_inference.engines.flags.catalogue import (
    UnknownRelease,
    flags_of,
    listed_releases,
    nearest_release,
)
from exo_inference.engines.flags.problems import REASONS, ParameterProblem
from exo_inference.engines.flags.suggestions import MEANINGS, suggest
from exo_inference.engines.vllm import ENGINE


def check(items: list[str], version: str | None = None) -> list[ParameterProblem]:
    return list(vllm.ENGINE.read(items, version).problems)


def detail(*items: str, version: str = "0.28.0") -> str:
    (problem,) = check([*items], version)
    return problem.detail


def default(name: str, version: str) -> str:
    return next(p.default for p in ENGINE.parameters(version) if p.name == name)


def choices(name: str, version: str) -> list[str]:
    return next(p.allowed_values for p in ENGINE.parameters(version) if p.name == name)


@pytest.mark.parametrize(
    ("version", "listed"),
    [
        ("0.12.0", "0.12.0"),
        ("0.13.0", "0.12.0"),
        ("0.18.1", "0.18.0"),
        ("0.25.1", "0.25.0"),
        ("0.32.0", "0.28.0"),
        ("0.33.0", "0.33.0"),
        ("v0.20.2", "0.20.0"),
        ("0.16", "0.16.0"),
    ],
)
def test_release_between_two_listed_ones_is_judged_as_the_lower(version: str, listed: str) -> None:
    assert nearest_release(version) == listed
    assert flags_of(version).listed == listed


@pytest.mark.parametrize("version", ["0.11.2", "0.33.1", "1.0.0", "newest", "", "0.28.0rc1"])
def test_release_that_is_not_known_is_refused(version: str) -> None:
    with pytest.raises(UnknownRelease) as caught:
        nearest_release(version)
    assert "0.12.0" in str(caught.value.hint)


def test_message_says_which_release_judged() -> None:
    assert "vLLM 0.18.1 (judged as 0.18.0, the nearest release listed)" in detail(
        "--spec-method", "ngram", version="0.18.1"
    )


def test_every_version_of_the_api_can_be_judged() -> None:
    for version in VERSIONS:
        assert check(["--max-model-len=8192", "--enforce-eager"], version) == []


def test_facts_of_releases_are_told_apart() -> None:
    assert default("gpu-memory-utilization", "0.19.1") == "0.9"
    assert default("gpu-memory-utilization", "0.20.0") == "0.92"
    assert "reward" in choices("convert", "0.15.1")
    assert "reward" not in choices("convert", "0.16.0")
    assert "nvfp4" not in choices("kv-cache-dtype", "0.19.0")
    assert "nvfp4" in choices("kv-cache-dtype", "0.20.0")
    assert check(["--block-size=24"], "0.16.0")[0].reason == "choice"
    assert check(["--block-size=24"], "0.18.0") == []
    assert check(["--max-model-len=auto"], "0.12.0")[0].reason == "type"
    assert check(["--max-model-len=auto"], "0.15.1") == []
    assert check(["--attention-backend=FLASH_ATTN"], "0.12.0")[0].reason == "not-yet"
    assert check(["--attention-backend=FLASH_ATTN"], "0.15.1") == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("--max-tokens", "--max-model-len"),
        ("--gpu-memory", "--gpu-memory-utilization"),
        ("--context-length", "--max-model-len"),
        ("--tp-size", "--tensor-parallel-size"),
        ("--batch-size", "--max-num-seqs"),
        ("--kv-dtype", "--kv-cache-dtype"),
        ("--rope-scaling", "--hf-overrides"),
        ("--disable-prefix-caching", "--no-enable-prefix-caching"),
        ("--num-speculative-tokens", "--speculative-config"),
        ("--max-modell-len", "--max-model-len"),
        ("--Max-Model-Len", "--max-model-len"),
        ("--max-model", "--max-model-len"),
        ("--utilization-memory-gpu", "--gpu-memory-utilization"),
        ("--tool_call_parsers", "--tool-call-parser"),
        ("-tpp", "-tp"),
    ],
)
def test_unknown_flag_gets_the_one_that_was_meant(wrong: str, right: str) -> None:
    assert detail(wrong, "2").endswith(f"did you mean {right}?")


def test_a_flag_that_resembles_none_gets_no_suggestion() -> None:
    assert detail("--bogus", "2").endswith("search for it in the parameter help")


def test_every_meaning_names_a_flag_of_some_release() -> None:
    every = {flag for version in listed_releases() for flag in flags_of(version).spellings()}
    assert set(MEANINGS.values()) <= every
    newest = flags_of("0.33.0").spellings()
    assert not [word for word in MEANINGS if f"--{word}" in newest]
    for word, flag in MEANINGS.items():
        if flag in newest:
            assert suggest(f"--{word}", newest) == flag


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (["--max-model-len", "32kb"], "leave the B out"),
        (["--max-num-seqs", "4k"], "write it out: 4000"),
        (["--max-num-seqs", "1_000"], "write 1000"),
        (["--gpu-memory-utilization", "90"], "expected a number, above 0 and at most 1"),
        (["--kv-cache-dtype", "FP8"], "did you mean fp8?"),
        (["--speculative-config", "{'method': 'ngram'}"], "double quotes"),
        (["--speculative-config", "{method: ngram}"], "single quotes around the whole value"),
        (["--speculative-config", '{"enforce_eager": True}'], "true, false and null"),
        (["--speculative-config", '{"num_spec_tokens": 4}'], "mean num_speculative_tokens?"),
        (["--speculative-config", '{"num_speculative_tokens": "four"}'], "a whole number"),
        (["-cc.cudagraph_mod", "FULL"], "did you mean cudagraph_mode?"),
        (["--limit-mm-per-prompt", "image=2"], 'write {"image": 2}'),
        (["--swap-space", "4"], "last in vLLM 0.17.0"),
        (["--task", "embed"], "write --runner pooling --convert embed instead"),
        (["--max-model-len 8192"], "write --max-model-len=8192"),
        (["--enforce-eager", "extra"], "takes no value"),
        (["-O9"], "expected one of: 0, 1, 2, 3"),
        (["-O.mode=3"], "did you mean --compilation-config?"),
        (["--port", "80"], "private socket behind the gateway"),
        (["--device-memory-utilization", "0.5"], "write --gpu-memory-utilization"),
        (["--chat-template=a\x00"], "control character"),
    ],
)
def test_problem_comes_with_a_next_step(items: list[str], says: str) -> None:
    assert says in detail(*items)


@pytest.mark.parametrize(
    "items",
    [
        ["-O3"],
        ["-O", "2"],
        ["-O=1"],
        ["-tp", "2"],
        ["-tp=2"],
        ["-q", "fp8"],
        ["--max-model-len", "-1"],
        ["--max-model-len=32K"],
        ["--max-num-batched-tokens", "8.5k"],
        ["--moe-backend", "DEEP-GEMM"],
        ["--cudagraph-capture-sizes", "1", "2", "4", "--enforce-eager"],
        ["--config-format", "mistral", "--load-format=mistral", "--tokenizer_mode", "mistral"],
        ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
        ["-cc.mode=3", "-cc.cudagraph_capture_sizes+", "1,2"],
        ["--hf-overrides", '{"rope_parameters": {"rope_type": "yarn", "factor": 4}}'],
        ["--hf-overrides.rope_parameters.factor", "4"],
        ["--kv-transfer-config", '{"kv_connector": "X", "kv_connector_extra_config": {"n": 80m}}'],
        ["--quantization", "None"],
        ["--middleware=a.b", "--middleware=c.d"],
        ["--chat-template", "{% for m in messages %}\n{{ m }}{% endfor %}"],
    ],
)
def test_forms_that_the_engine_reads_are_accepted(items: list[str]) -> None:
    assert check(items, "0.28.0") == []


def test_all_problems_are_reported_at_once_in_order() -> None:
    items = [
        "--max-tokens",
        "9",
        "stray",
        "--port=1",
        "--dtype=fp64",
        "--seed",
        "--enforce-eager=1",
    ]
    found = [(problem.index, problem.reason) for problem in check(items, "0.28.0")]
    assert found == [
        (0, "unknown"),
        (2, "stray"),
        (3, "owned"),
        (4, "choice"),
        (5, "missing"),
        (6, "boolean"),
    ]


def test_values_can_be_read() -> None:
    items = ["-tp", "2", "--max_model_len=32k", "--no-enable-prefix-caching", "-O3", "-cc.mode=3"]
    assert vllm.ENGINE.read(items).values == {
        "tensor-parallel-size": 2,
        "max-model-len": 32_000,
        "enable-prefix-caching": False,
        "optimization-level": 3,
        "compilation-config": {"mode": 3},
    }


words = st.sampled_from(
    [
        "--",
        "-",
        "-O",
        "-O.a",
        "--max-model-len",
        "--hf-overrides.a",
        "--hf-overrides.",
        "=",
        "--no-",
        "--speculative-config",
        '{"method": 1e999}',
        "[" * 5000,
        "--cudagraph-capture-sizes",
        "-1",
    ]
)


@settings(max_examples=200, deadline=None)
@given(items=st.lists(words | st.text(max_size=12), max_size=6))
def test_no_vector_makes_the_check_fail(items: list[str]) -> None:
    for problem in check(items, "0.28.0"):
        assert 0 <= problem.index < len(items)
        assert problem.reason in REASONS
        assert problem.detail


def test_descriptions_are_short_sentences() -> None:
    for parameter in vllm.ENGINE.parameters("0.33.0"):
        assert 20 <= len(parameter.description) <= 300, parameter.name
        assert parameter.description.endswith("."), parameter.name
        assert parameter.description[0].isupper(), parameter.name


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--speculative-config", '{"num_speculative_tokens": -5}', "-5, expected a whole number, above 0"),
        ("--speculative-config", '{"num_speculative_tokens": 0}', "0, expected a whole number, above 0"),
        ("--speculative-config.num_speculative_tokens", "0", "expected a whole number, above 0"),
        ("--speculative-config", '{"method": "egle"}', "did you mean eagle?"),
        ("--speculative-config", '{"method": 3}', "expected one of: ngram"),
        ("--speculative-config", '{"suffix_decoding_min_token_prob": 1.5}', "at most 1"),
        ("--compilation-config", '{"mode": 7}', "at least 0 and at most 3"),
        ("--compilation-config", '{"cudagraph_capture_sizes": [0, 8]}', "expected a whole number, above 0"),
        ("--compilation-config", '{"max_cudagraph_capture_size": -4}', "expected a whole number, above 0"),
        ("--compilation-config", '{"mode": "quick"}', "one of: NONE"),
        ("--compilation-config", '{"level": 3}', "level became mode"),
        ("--kv-transfer-config", '{"kv_role": "kv_bot"}', "did you mean kv_both?"),
        ("--structured-outputs-config", '{"backend": "xgramar"}', "did you mean xgrammar?"),
        ("--kernel-config", '{"moe_backend": "x"}', "expected one of: auto"),
    ],
)  # fmt: skip
def test_values_in_json_are_judged(flag: str, value: str, expected: str) -> None:
    problems = check([flag, value])
    assert len(problems) == 1
    assert expected in problems[0].detail


@pytest.mark.parametrize(
    ("version", "method", "is_taken"),
    [
        ("0.12.0", "eagle3", True),
        ("0.12.0", "egle", False),
        ("0.28.0", "medusa", True),
        ("0.33.0", "medusa", False),
    ],
)
def test_methods_in_json_are_those_of_the_release(
    version: str, method: str, is_taken: bool
) -> None:
    flags = ["--speculative-config", f'{{"method": "{method}", "num_speculative_tokens": "3"}}']
    assert (check(flags, version) == []) == is_taken


@pytest.mark.parametrize("value", ['{"cudagraph_mode": "full", "mode": "3"}', '{"mode": "none"}'])
def test_names_in_json_are_taken_in_any_case(value: str) -> None:
    assert check(["--compilation-config", value]) == []


def test_everything_wrong_in_one_object_is_told() -> None:
    problems = check(["-sc", '{"method": "egle", "num_speculative_tokens": 0, "modle": "x"}'])
    assert [problem.reason for problem in problems] == ["choice", "range", "key"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--max-model-len", "0"], "expected a whole number above 0, or -1 for"),
        (["--seed", "9" * 19], "of at most 18 digits"),
        (["--max-model-len", "9" * 30], "at least -1, of at most 18 digits"),
        (["--max-model-len", "99999999999T"], "at least -1, of at most 18 digits"),
        (["--cudagraph-capture-sizes", "0", "8"], "is '0', expected a whole number, at least 1"),
        (["--max-cudagraph-capture-size=-4"], "expected a whole number, at least 1"),
        (["--max-model-len="], "--max-model-len is '', expected a whole number"),
        (["-O", "9"], "--optimization-level is '9', expected one of: 0, 1, 2, 3"),
        (["-O9"], "--optimization-level is '9', expected one of: 0, 1, 2, 3"),
    ],
    ids=[
        "no length",
        "huge",
        "huge with a limit",
        "huge by its suffix",
        "no graph",
        "less than a graph",
        "nothing",
        "level apart",
        "level",
    ],
)
def test_numbers_out_of_range_say_the_range(flags: list[str], expected: str) -> None:
    problems = check(flags)
    assert len(problems) == 1
    assert expected in problems[0].detail
