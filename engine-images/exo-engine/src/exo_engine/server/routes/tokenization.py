"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from aiohttp import web

from exo_engine.server.api_errors import bad_request
from exo_engine.server.known_fields import DETOKENIZE, TOKENIZE, TOKENIZE_TEXT, check_fields
from exo_engine.server.routes.conversation import read_conversation
from exo_engine.server.routes.requests import json_response, read_request
from exo_engine.server.service import Service


async def tokenize(request: web.Request, service: Service) -> web.Response:
    """Return the token ids of a text or of a conversation."""
    fields = await read_request(request, service)
    check_fields(fields, TOKENIZE)
    service.check_model(fields)
    has_strings = fields.boolean("return_token_strs")
    if fields.has("messages"):
        if fields.has("prompt"):
            raise bad_request("prompt does not go with messages", "prompt")
        tokens = (await read_conversation(fields, service)).tokens
    else:
        check_fields(fields, TOKENIZE_TEXT)
        text = fields.string("prompt")
        if text is None:
            raise fields.wrong("prompt", "a string")
        is_special_added = fields.boolean("add_special_tokens", True)
        tokens = await service.encode(text, add_special_tokens=is_special_added)
    tokenizer = service.text.tokenizer
    return json_response(
        {
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "tokens": tokens,
            "token_strs": [tokenizer.token_text(each) for each in tokens] if has_strings else None,
        }
    )


async def detokenize(request: web.Request, service: Service) -> web.Response:
    """Return the text of token ids."""
    fields = await read_request(request, service)
    check_fields(fields, DETOKENIZE)
    service.check_model(fields)
    if not fields.has("tokens"):
        raise fields.wrong("tokens", "a list of token ids")
    tokens = fields.token_ids("tokens", service.vocabulary_size, most=service.max_model_len)
    text = service.text.tokenizer.decode(tokens, skip_special_tokens=False)
    return json_response({"prompt": text})
