"""The names of adapters that flags load."""

from __future__ import annotations

import pytest

from exo_inference.engines.adapters import adapter_names


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        pytest.param("vllm", [], (), id="none"),
        pytest.param("vllm", ["--enable-lora", "--max-loras=4", "a=b"], (), id="other flags"),
        pytest.param(
            "vllm",
            ["--lora-modules", "sql=/a", "chat=org/b", "--seed=1", "x=y"],
            ("sql", "chat"),
            id="vLLM",
        ),
        pytest.param("vllm", ["--lora-modules=sql=/a"], ("sql",), id="in one word"),
        pytest.param(
            "vllm",
            ["--lora_modules", '{"name": "sql", "path": "/a=b"}', '[{"name": "chat"}]'],
            ("sql", "chat"),
            id="JSON",
        ),
        pytest.param(
            "sglang", ["--lora-paths", "sql=/a", '{"lora_name": "x"}'], ("sql", "x"), id="SGLang"
        ),
        pytest.param("tgi", ["--lora-adapters", "sql=/a,chat=/b"], ("sql", "chat"), id="TGI"),
        pytest.param("vllm", ["--lora-modules", "sql=/a", "sql=/b"], ("sql",), id="once each"),
        pytest.param("vllm", ["--lora-modules=a=/x,b=/y"], ("a",), id="vLLM splits at no comma"),
        pytest.param("sglang", ["--lora_paths", "a=/x"], (), id="SGLang reads no _ as -"),
        pytest.param("exo", ["--lora-modules", "a=/x"], (), id="exo-engine has no such flag"),
        pytest.param("other", ["--lora-modules", "a=/x"], (), id="an engine that is not known"),
        pytest.param("vllm", ["--lora-modules", "{", "[7]", "path", "="], (), id="nonsense"),
    ],
)
def test_names_of_adapters(engine: str, flags: list[str], expected: tuple[str, ...]) -> None:
    assert adapter_names(engine, tuple(flags)) == expected
