"""`langchain-openai`: answers, streams, tools and structured output."""

from __future__ import annotations

import os
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))


class Color(BaseModel):
    """A color."""

    red: int = Field(ge=0, le=255)
    name: str = Field(max_length=12)


@tool
def get_weather(city: Literal["Bern", "Basel"], days: Literal[1, 2, 3]) -> str:
    """Say what the weather of a city is."""
    return f"{city}: sunny for {days} days"


chat = ChatOpenAI(
    base_url=URL, api_key=KEY, model=MODEL, max_retries=0, temperature=1, seed=4, max_tokens=300
)
assert chat.invoke("What is a KV cache?").content
assert "".join(chunk.content for chunk in chat.stream("What is a KV cache?"))
assert len(chat.batch(["What is a token?"] * 4)) == 4
usage = chat.invoke("What is a token?").usage_metadata
assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

for choice in ("get_weather", "required"):
    bound = chat.bind_tools(
        [get_weather], tool_choice=choice, strict=True, parallel_tool_calls=False
    )
    answer = bound.invoke("Weather?")
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    assert isinstance(call["args"]["days"], int)
    told = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
    assert chat.invoke([HumanMessage("Weather?"), answer, told]).response_metadata
    gathered = None
    for chunk in bound.stream("Weather?"):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.tool_calls[0]["name"] == "get_weather"
chat.bind_tools([get_weather]).invoke("Weather?")

for method in ("json_schema", "function_calling"):
    found = chat.with_structured_output(Color, method=method).invoke("A color")
    assert isinstance(found, Color), method
responding = ChatOpenAI(
    base_url=URL, api_key=KEY, model=MODEL, max_retries=0, use_responses_api=True, max_tokens=40
)
assert responding.invoke("What is a KV cache?").text
assert list(responding.stream("What is a KV cache?"))
assert OpenAI(base_url=URL, api_key=KEY, model=MODEL, max_retries=0, max_tokens=9).invoke(
    "A cache is"
)
