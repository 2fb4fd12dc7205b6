"""The names of adapters that flags load."""

from __future__ import annotations

import pytest

from exo_inference.engines.adapters import adapter_names


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param([], (), id="none"),
        pytest.param(["--enable-lora", "--max-loras=4", "a=b"], (), id="other flags"),
        pytest.param(
            ["--lora-modules", "sql=/a", "chat=org/b", "--seed=1", "x=y"],
            ("sql", "chat"),
            id="vLLM",
        ),
        pytest.param(["--lora-modules=sql=/a"], ("sql",), id="in one word"),
        pytest.param(
            ["--lora_modules", '{"name": "sql", "path": "/a=b"}', '[{"name": "chat"}]'],
            ("sql", "chat"),
            id="JSON",
        ),
        pytest.param(["--lora-paths", "sql=/a", '{"lora_name": "x"}'], ("sql", "x"), id="SGLang"),
        pytest.param(["--lora-adapters", "sql=/a,chat=/b"], ("sql", "chat"), id="TGI"),
        pytest.param(["--lora-modules", "sql=/a", "sql=/b"], ("sql",), id="once each"),
        pytest.param(["--lora-modules", "{", "[7]", "path", "="], (), id="nonsense"),
    ],
)
def test_names_of_adapters(flags: list[str], expected: tuple[str, ...]) -> None:
    assert adapter_names(flags) == expected
