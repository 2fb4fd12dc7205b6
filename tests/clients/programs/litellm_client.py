"""`litellm`, as OpenAI's and as vLLM's provider: answers, streams, tools, schemas, text and responses."""

from __future__ import annotations

import asyncio
import json
import os

import litellm

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))
ASK = [{"role": "user", "content": "What is a KV cache?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
litellm.drop_params = False

for provider in ("openai", "hosted_vllm"):
    given = {"model": f"{provider}/{MODEL}", "api_base": URL, "api_key": KEY, "num_retries": 0}
    whole = litellm.completion(messages=ASK, temperature=0, max_tokens=20, **given)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens
    chunks = list(
        litellm.completion(
            messages=ASK,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            **given,
        )
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    called = litellm.completion(
        messages=ASK, max_tokens=200, temperature=1, tool_choice="required", parallel_tool_calls=False,
        tools=[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}],
        **given,
    )  # fmt: skip
    (call,) = called.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city"}
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": PARAMETERS, "strict": True},
    }
    found = litellm.completion(
        messages=ASK, max_tokens=200, temperature=1, response_format=schema, **given
    )
    assert set(json.loads(found.choices[0].message.content)) == {"city"}
    answer = asyncio.run(litellm.acompletion(messages=ASK, max_tokens=5, **given))
    assert answer.choices[0].finish_reason

text = litellm.text_completion(
    model=f"text-completion-openai/{MODEL}",
    prompt="A cache is",
    max_tokens=5,
    api_base=URL,
    api_key=KEY,
)
assert text.choices[0].text
response = litellm.responses(
    model=f"openai/{MODEL}",
    input="What is a KV cache?",
    max_output_tokens=20,
    api_base=URL,
    api_key=KEY,
)
assert response.output
