"""`model create`: fetch a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from exo_inference.cli.hub_token import TokenSources, read_token
from exo_inference.cli.rendering.results import ANSWER, Answer, resulting, show_model
from exo_inference.cli.rendering.views import MODEL
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import Followed, follow, wait_options
from exo_inference.cli.writes import changed_id, dry_run_option, finish, titled
from exo_inference.errors import UsageError
from exo_inference.wire import Operation


@command(
    "create",
    aliases=["add", "download"],
    examples=[
        Example(
            "Fetch a public model and wait until it is there",
            "exo ai model create Qwen/Qwen3-0.6B --wait",
        ),
        Example(
            "Fetch a gated model with a token that stays out of the shell's history",
            "exo ai model create meta-llama/Llama-3.1-8B-Instruct "
            "--huggingface-token-file ~/.hf-token",
        ),
        Example(
            "Fetch one GGUF file of a repository, which llama.cpp loads",
            "exo ai model create ggml-org/gpt-oss-20b-GGUF:MXFP4",
        ),
        Example(
            "Use a directory of the machine the control plane runs on",
            "exo ai model create file:///srv/models/my-llama",
        ),
        Example(
            "Use the small model that comes with the program", "exo ai model add exo/tiny-chat"
        ),
    ],
)
@click.argument("name", metavar="<name>")
@click.option(
    "--huggingface-token",
    metavar="<token>",
    help="Hub token. Others on this machine can read it while the command runs; prefer the file.",
)
@click.option(
    "--huggingface-token-file",
    metavar="<file>",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File that holds the Hub token, `-` for stdin; without it [env HF_TOKEN].",
)
@click.option(
    "--revision", metavar="<revision>", help="Branch, tag or commit of the Hub repository."
)
@wait_options("the model is ready")
@dry_run_option
@pass_session
def create(
    session: Session,
    name: str,
    huggingface_token: str | None,
    huggingface_token_file: Path | None,
    revision: str | None,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
) -> None:
    """Fetch a model.

    The name says where from: `org/name` on the Hugging Face Hub, `org/name:Q4_K_M` for one GGUF
    file there, `file:///path` on the server, or `exo/tiny-chat`, which comes with the program. The
    command returns as soon as the model is recorded; `--wait` follows the download to its end.
    """
    if not name:
        raise UsageError("<name> is empty", hint="Give the model's name, such as Qwen/Qwen3-0.6B.")
    token = read_token(TokenSources(huggingface_token, huggingface_token_file))
    output = session.output(MODEL.field_names)
    with session.connect() as client:
        operation = finish(
            session,
            client,
            titled(f'Creating model "{name}"', dry_run=dry_run),
            lambda: client.models.create(
                name,
                huggingface_token=token,
                revision=revision,
                dry_run=dry_run,
            ),
        )
        if dry_run:
            session.success("Model would be created (dry run).")
            _remark_size(session, operation)
            would = Answer("model", "", name, "would be created", dry_run=True)
            manifest = partial(_manifest, name, revision)
            if output.is_for_programs:
                output.show(ANSWER.record(would), manifest=manifest)
            return
        session.success("Model created.")
        _remark_size(session, operation)
        if wait or output.is_for_programs:
            model_id = changed_id(operation) or client.models.find(name).id
            with resulting(output, lambda: show_model(output, client.models.get(model_id))):
                if wait:
                    followed = Followed("model", name, client.models.wait_until_ready)
                    follow(session, followed, model_id, wait_timeout)


def _remark_size(session: Session, operation: Operation) -> None:
    """Say how much is fetched, where the server knows it: after what it says of a dry run."""
    told = (operation.message or "").rpartition("; ")[2]
    if told.endswith("to fetch"):
        session.remark(f"{told}.")


def _manifest(name: str, revision: str | None) -> str:
    """Return what `apply` takes to create this model."""
    from exo_inference.cli.gitops.live import MODEL_KIND, LiveObject

    spec: dict[str, Any] = {"source": name}
    if revision is not None:
        spec["revision"] = revision
    return LiveObject(MODEL_KIND, name, "", spec).manifest()
