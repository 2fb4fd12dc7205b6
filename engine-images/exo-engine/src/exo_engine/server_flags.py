"""The flags of the HTTP server, as data; part of the table in `flags.py`."""

from __future__ import annotations

from typing import Final

from exo_engine.answer_formats import REASONING_PARSER_NAMES, TOOL_PARSER_NAMES
from exo_engine.flag import Flag

SERVER_FLAGS: Final[tuple[Flag, ...]] = (
    Flag(
        name="host",
        kind="string",
        section="Frontend",
        is_platform_owned=True,
        default="127.0.0.1",
        description="Address to listen on. Unlike vLLM's the default is this machine only.",
    ),
    Flag(
        name="port",
        kind="integer",
        section="Frontend",
        is_platform_owned=True,
        default=8000,
        minimum=0,
        maximum=65535,
        description="Port to listen on; 0 picks a free one and logs it.",
    ),
    Flag(
        name="uds",
        kind="string",
        section="Frontend",
        is_platform_owned=True,
        description="Path of a unix socket to listen on, instead of host and port.",
    ),
    Flag(
        name="api-key",
        kind="strings",
        section="Frontend",
        is_platform_owned=True,
        description="Keys one of which clients must bring as Bearer token to /v1 paths. The "
        "variable EXO_ENGINE_API_KEY says the same without showing it in process lists.",
    ),
    Flag(
        name="chat-template",
        kind="string",
        section="Frontend",
        description="Path of a Jinja chat template, or the template itself, that takes the place "
        "of the model's.",
    ),
    Flag(
        name="chat-template-content-format",
        kind="enum",
        section="Frontend",
        default="auto",
        choices=("auto", "string", "openai"),
        description="How message content reaches the template: as one string, or as OpenAI's list "
        "of parts. `auto` finds out which of the two the template understands.",
    ),
    Flag(
        name="default-chat-template-kwargs",
        kind="json",
        section="Frontend",
        description="JSON object of variables for the chat template, which a request's "
        "chat_template_kwargs may override.",
    ),
    Flag(
        name="enable-auto-tool-choice",
        kind="boolean",
        section="Frontend",
        default=True,
        description="Let the model call tools when it likes. Always on where a parser of calls is.",
        only_values=(True,),
        only_reason="to have calls left in the text, use --tool-call-parser none",
    ),
    Flag(
        name="tool-call-parser",
        kind="enum",
        section="Frontend",
        default="auto",
        choices=("auto", "none", *TOOL_PARSER_NAMES),
        description="How the model writes calls of tools, under vLLM's names. `auto` finds it in "
        "the chat template; with `none`, calls stay in the text.",
    ),
    Flag(
        name="reasoning-parser",
        kind="enum",
        section="Frontend",
        default="auto",
        choices=("auto", "none", *REASONING_PARSER_NAMES),
        description="How the model marks its reasoning, under vLLM's names. `auto` finds it in the "
        "chat template; with `none`, reasoning stays in the text.",
    ),
    Flag(
        name="response-role",
        kind="string",
        section="Frontend",
        default="assistant",
        description="Role named in chat answers.",
    ),
    Flag(
        name="enable-force-include-usage",
        kind="boolean",
        section="Frontend",
        default=False,
        description="End every stream with the token counts, asked for or not.",
    ),
    Flag(
        name="enable-prompt-tokens-details",
        kind="boolean",
        section="Frontend",
        default=True,
        description="Say in `usage` how many prompt tokens came from the prefix cache. On by "
        "default here.",
    ),
    Flag(
        name="return-tokens-as-token-ids",
        kind="boolean",
        section="Frontend",
        default=False,
        description="Name tokens in log probabilities as `token_id:<id>`.",
    ),
    Flag(
        name="enable-tokenizer-info-endpoint",
        kind="boolean",
        section="Frontend",
        default=False,
        description="Answer GET /tokenizer_info with the tokenizer's configuration and the chat "
        "template.",
    ),
    Flag(
        name="enable-server-load-tracking",
        kind="boolean",
        section="Frontend",
        default=True,
        description="Count requests for GET /load. Always on here.",
        only_values=(True,),
        only_reason="requests are counted anyway",
    ),
    Flag(
        name="enable-log-requests",
        kind="boolean",
        section="Frontend",
        default=True,
        aliases=(),
        description="Log one line for each request (never its prompt). On by default here.",
    ),
    Flag(
        name="disable-log-requests",
        kind="boolean",
        section="Frontend",
        default=False,
        description="The older way to switch the request log off.",
    ),
    Flag(
        name="disable-log-stats",
        kind="boolean",
        section="Frontend",
        default=False,
        description="Do not log a line about load and throughput every few seconds.",
    ),
    Flag(
        name="disable-uvicorn-access-log",
        kind="boolean",
        section="Frontend",
        default=False,
        description="Another way to switch the request log off; named after vLLM's web server.",
    ),
    Flag(
        name="uvicorn-log-level",
        kind="enum",
        section="Frontend",
        default="info",
        aliases=("--log-level",),
        choices=("debug", "info", "warning", "error", "critical", "trace"),
        description="Least severe log lines to show; named after vLLM's web server.",
    ),
    Flag(
        name="shutdown-timeout",
        kind="integer",
        section="Frontend",
        default=120,
        minimum=0,
        description="Seconds that requests in progress may take to end after SIGTERM. New ones "
        "are refused meanwhile. 0 ends them at once (vLLM's default).",
    ),
    Flag(
        name="max-request-body-bytes",
        kind="integer",
        section="Frontend",
        default=32 * 2**20,
        minimum=1024,
        human=True,
        description="Largest request body that is read; more is answered with 413. exo-engine "
        "only.",
    ),
)
