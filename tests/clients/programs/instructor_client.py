"""`instructor`: objects from answers, by calls of tools and by schemas."""

from __future__ import annotations

import os
from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field

URL, KEY, MODEL = (os.environ[name] for name in ("CLIENT_URL", "CLIENT_KEY", "CLIENT_MODEL"))


class Item(BaseModel):
    name: str = Field(max_length=10)
    count: int = Field(ge=0, le=99)


class Order(BaseModel):
    kind: Literal["new", "changed"]
    items: list[Item] = Field(min_length=1, max_length=2)


raw = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(raw, mode=mode)
    found = client.chat.completions.create(
        model=MODEL, response_model=Order, messages=[{"role": "user", "content": "An order"}],
        max_tokens=400, temperature=1, seed=2, max_retries=0,
    )  # fmt: skip
    assert isinstance(found, Order), mode
    *_, last = client.chat.completions.create_partial(
        model=MODEL, response_model=Order, messages=[{"role": "user", "content": "An order"}],
        max_tokens=400, temperature=1, seed=2, max_retries=0,
    )  # fmt: skip
    assert last.kind in ("new", "changed"), mode
