"""`export`: write the objects of a zone as files that `apply` takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.gitops.live import LiveObject


@command(
    "export",
    examples=[
        Example("Show everything in the zone as YAML", "exo ai export"),
        Example("Start a repository: one file per object", "exo ai export -f deploy/"),
        Example(
            "Copy a zone to another one", "exo ai export -z ch-dk-2 | exo ai apply -z at-vie-2 -f -"
        ),
    ],
)
@click.option(
    "-f",
    "--filename",
    metavar="<file>",
    type=click.Path(allow_dash=True),
    default="-",
    help="File to write, or directory (one that exists, or a name that ends in `/`) for one file "
    "per object; without it, or `-`, stdout.",
)
@pass_session
def export(session: Session, filename: str) -> None:
    """Write models and deployments as YAML that `apply` takes.

    Status is left out: applying what was exported changes nothing. Files of the same name are
    overwritten, others are left alone.
    """
    run(session, filename)


def run(session: Session, filename: str) -> None:
    """Read the zone and write it to where it was asked for."""
    from exo_inference.cli.gitops.live import read_live

    with session.connect() as client:
        objects = read_live(client)
    if session.output(()).format == "json" and filename == "-":
        from exo_inference.cli.gitops.report import print_json

        print_json([_document(obj) for obj in objects])
        return
    try:
        _write(session, filename, objects)
    except OSError as exc:
        raise ExoError(
            f"cannot write {exc.filename or filename}: {exc.strerror or exc}",
            hint="Name another place with -f.",
        ) from exc


def _write(session: Session, filename: str, objects: Sequence[LiveObject]) -> None:
    if filename == "-":
        click.echo("---\n".join(_text(obj) for obj in objects), nl=False)
        return
    path = Path(filename)
    if not filename.endswith(os.sep) and not path.is_dir():
        _write_file(path, "---\n".join(_text(obj) for obj in objects))
        session.success(f"{len(objects)} objects written to {path}")
        return
    path.mkdir(parents=True, exist_ok=True)
    for obj in objects:
        file = path / f"{obj.kind.lower()}-{object_file_name(obj)}.yaml"
        _write_file(file, _text(obj))
        session.success(f"{obj.label} written to {file}")


def object_file_name(obj: LiveObject) -> str:
    """Return the object's `metadata.name`; a name that is no safe file name becomes one."""
    from exo_inference.resources import model_object_name

    is_safe = obj.object_name.replace("-", "").isalnum() and obj.object_name.isascii()
    return obj.object_name if is_safe else model_object_name(obj.name)


def _text(obj: LiveObject) -> str:
    from exo_inference.resources.yaml import dump_manifest

    return dump_manifest(obj.kind, obj.object_name, obj.spec)


def _document(obj: LiveObject) -> dict[str, object]:
    import yaml

    document: dict[str, object] = yaml.safe_load(_text(obj))
    return document


def _write_file(file: Path, text: str) -> None:
    """Replace a file whole: a reader sees the old one or the new one."""
    from exo_inference.state_dir import write_atomically

    write_atomically(file, text, mode=0o644)
