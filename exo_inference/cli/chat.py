"""`chat`: talk to a deployment from the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.chat_files import read_schema, read_tools
from exo_inference.cli.chat_hold import remarks_while_held
from exo_inference.cli.chat_stream import (
    ChatEndpoint,
    ChatOptions,
    ModelNotServed,
    Reply,
    read_served_model,
    stream_chat,
    through,
)
from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.durations import Limit
from exo_inference.cli.rendering.terminal import harmless, print_data
from exo_inference.cli.rendering.views import Column, View
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import DEFAULT_WAIT_SECONDS, wait_for_deployment
from exo_inference.errors import ExoError, UsageError

if TYPE_CHECKING:
    from exo_inference.wire import Deployment

Message = dict[str, str]

MAX_SERVED = 256
"""Characters of a model's name that a server says."""

_HELP = "Type a message and Enter; /clear forgets the conversation, /quit or Ctrl-D ends it."

REPLY: View[Reply] = View(
    (
        Column("text", "Text", "Text", lambda reply: reply.text),
        Column("finish_reason", "FinishReason", "Finish Reason", lambda r: r.finish_reason),
        Column("prompt_tokens", "PromptTokens", "Prompt Tokens", lambda r: r.num_prompt_tokens),
        Column(
            "completion_tokens",
            "CompletionTokens",
            "Completion Tokens",
            lambda r: r.num_completion_tokens,
        ),
        Column(
            "tool_calls",
            "ToolCalls",
            "Tool Calls",
            lambda r: [each.shown() for each in r.calls] or None,
            added=True,
        ),
    )
)


@dataclass
class Conversation:
    """What has been said so far.

    Attributes:
        system: the system prompt, if any.
        messages: what user and assistant said, in turn.
    """

    system: str | None
    messages: list[Message] = field(default_factory=list)

    def with_question(self, question: str) -> list[Message]:
        """Return what to send for the next question."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.messages, {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        """Remember one exchange."""
        self.messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]


@command(
    "chat",
    examples=[
        Example("Ask one question", 'exo dedicated-inference chat demo "What is a KV cache?"'),
        Example("Talk to it", "exo dedicated-inference chat demo"),
        Example(
            "Summarise a file, and see how fast that was",
            "exo dedicated-inference chat demo --system 'Summarise.' --stats < notes.txt",
        ),
        Example(
            "Get the answer as JSON",
            "exo ai chat demo 'What is a KV cache?' -O json | jq -r .text",
        ),
        Example(
            "Get JSON of a form of your own",
            "exo ai chat demo 'Ada, 36' --json-schema person.json",
        ),
        Example(
            "Have it call a function",
            "exo ai chat demo 'How is the weather in Bern?' --tools weather.json --tool-choice get_weather",
        ),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@click.argument("prompt", metavar="[<prompt>]", required=False)
@click.option("--system", metavar="<text>", help="System prompt.")
@click.option(
    "--max-tokens",
    metavar="<number>",
    type=click.IntRange(min=1),
    help="Longest answer, in tokens.",
)
@click.option(
    "--temperature",
    metavar="<number>",
    type=click.FloatRange(0, 2),
    help="How much chance there is in the answer; 0 for none.",
)
@click.option(
    "--base-url",
    metavar="<url>",
    help="Where the gateway is reached from here, in place of the beginning of the deployment's URL.",
)
@click.option(
    "--json-schema",
    "schema_file",
    metavar="<file>",
    type=click.Path(path_type=Path),
    help="Answer with JSON that the schema in this file allows.",
)
@click.option(
    "--tools",
    "tools_file",
    metavar="<file>",
    type=click.Path(path_type=Path),
    help="Let it call the functions in this file, a list as in OpenAI's API; its calls are printed.",
)
@click.option(
    "--tool-choice",
    metavar="<name>",
    help="With --tools: auto, required, none, or the function to call.",
)
@click.option("--stats", is_flag=True, help="Print time to first token and tokens per second.")
@click.option(
    "--timeout",
    "wait_timeout",
    metavar="<duration>",
    type=Limit(),
    default=DEFAULT_WAIT_SECONDS,
    help="How long to wait until the deployment is ready (default 30m).",
)
@pass_session
def chat(
    session: Session,
    deployment: str,
    prompt: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    base_url: str | None,
    schema_file: Path | None,
    tools_file: Path | None,
    tool_choice: str | None,
    stats: bool,
    wait_timeout: float,
) -> None:
    """Ask a deployment something, and print the answer as it is generated.

    Without a prompt, this is a conversation on a terminal, and one question from stdin elsewhere. A
    deployment that is not ready is waited for. Its key is looked up; nothing has to be copied.
    """
    if prompt is not None and not prompt.strip():
        raise UsageError("<prompt> is empty", hint="Leave it out for a conversation.")
    output = session.output(REPLY.field_names)
    is_conversation = prompt is None and sys.stdin.isatty()
    if is_conversation and output.is_for_programs:
        raise UsageError(
            "a conversation is for people: it has no -O json, -O yaml and --output-template",
            hint="Give the prompt as an argument, or pipe it in.",
        )
    if tool_choice is not None and tools_file is None:
        raise UsageError("--tool-choice needs --tools")
    if is_conversation and tools_file is not None:
        raise UsageError(
            "--tools asks one question, as nobody here carries out a call",
            hint="Give the prompt as an argument, or pipe it in.",
        )
    schema = None if schema_file is None else read_schema(schema_file)
    tools = None if tools_file is None else read_tools(tools_file, tool_choice)
    endpoint = _reach(session, deployment, wait_timeout)
    if base_url is not None:
        endpoint = replace(endpoint, url=through(base_url, endpoint.url))
    options = ChatOptions(max_tokens, temperature, schema, tools)
    conversation = Conversation(system)
    if is_conversation:
        _converse(session, endpoint, conversation, options, stats)
        return
    question = prompt if prompt is not None else sys.stdin.read().strip()
    if not question:
        raise UsageError(
            "stdin holds no prompt", hint="Give the prompt as an argument, or pipe it in."
        )
    asked = conversation.with_question(question)
    reply = _ask(session, endpoint, asked, options, print_pieces=not output.is_for_programs)
    if output.is_for_programs:
        output.show(REPLY.record(reply))
    _print_stats(reply, stats)


def _reach(session: Session, deployment: str, limit_seconds: float) -> ChatEndpoint:
    """Find the deployment's URL and key, waiting until it is ready."""
    with session.connect() as client:
        found: Deployment = client.deployments.get(client.deployments.find(deployment).id)
        if not found.replicas and not found.ready_replicas:
            raise ExoError(
                f'deployment "{found.name}" is scaled to zero, so nothing can answer',
                hint=f"Run `exo dedicated-inference deployment scale {found.name} 1`.",
            )
        if not found.ready_replicas and (
            str(found.state) != "ready" or found.ready_replicas is not None
        ):
            found = wait_for_deployment(session, client, found.name, found.id, limit_seconds)
        if not found.deployment_url:
            raise ExoError(
                f'deployment "{found.name}" has no URL yet',
                hint=f"Run `exo dedicated-inference deployment show {found.name}`.",
            )
        key = client.deployments.reveal_api_key(found.id)
    model = found.model.name or found.name
    return ChatEndpoint(found.deployment_url, key, model, found.name, found.id)


def _converse(
    session: Session,
    endpoint: ChatEndpoint,
    conversation: Conversation,
    options: ChatOptions,
    stats: bool,
) -> None:
    """Read questions until the user ends the conversation."""
    import readline  # noqa: F401 -- gives input() line editing and history

    if not session.quiet:
        click.echo(_HELP, err=True)
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            click.echo()
            return
        if question in ("/quit", "/exit"):
            return
        if question == "/clear":
            conversation.messages.clear()
        elif question:
            try:
                reply = _ask(session, endpoint, conversation.with_question(question), options)
            except KeyboardInterrupt:
                click.echo("\n(interrupted)", err=True)
                continue
            conversation.add(question, reply.text)
            _print_stats(reply, stats)


def _ask(
    session: Session,
    endpoint: ChatEndpoint,
    messages: Sequence[Message],
    options: ChatOptions,
    *,
    print_pieces: bool = True,
) -> Reply:
    """Print an answer as it comes, unless it is printed at the end, and return it.

    While a change to another model is not in effect, as when that does not start, the one before serves
    on and is asked.
    """
    try:
        return _ask_once(session, endpoint, messages, options, print_pieces=print_pieces)
    except ModelNotServed:
        served = read_served_model(endpoint)
        if served in ("", endpoint.model):
            raise
    click.echo(
        f'(answered by {harmless(served[:MAX_SERVED])}, which "{endpoint.deployment}" still serves: its change to {endpoint.model} is '
        f"not in effect, see `exo dedicated-inference deployment show {endpoint.deployment}`)",
        err=True,
    )
    other = replace(endpoint, model=served)
    return _ask_once(session, other, messages, options, print_pieces=print_pieces)


def _ask_once(
    session: Session,
    endpoint: ChatEndpoint,
    messages: Sequence[Message],
    options: ChatOptions,
    *,
    print_pieces: bool,
) -> Reply:
    reply = Reply()
    try:
        with remarks_while_held(session, endpoint.deployment_id) as begin:
            for piece in stream_chat(endpoint, messages, options, reply):
                begin()
                if print_pieces:
                    print_data(piece)
    finally:
        if print_pieces and reply.text and not reply.text.endswith("\n"):
            click.echo()
    if print_pieces:
        for call in reply.calls:
            print_data(f"{call.name}({call.arguments})\n")
    if reply.finish_reason == "length":
        click.echo("(cut: the answer reached its token limit)", err=True)
    return reply


def _print_stats(reply: Reply, wanted: bool) -> None:
    if wanted:
        click.echo(reply.statistics(), err=True)
