"""`export`: write the objects of a zone as files that `apply` takes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError, UsageError

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

    Status is left out: applying what was exported changes nothing. An object that the file or the
    directory has already keeps its name and its place there; a file that is written to is overwritten
    whole, others are left alone.
    """
    run(session, filename)


def run(session: Session, filename: str) -> None:
    """Read the zone and write it to where it was asked for."""
    from exo_inference.cli.gitops.live import read_live

    with session.connect() as client:
        objects = read_live(client)
    output = session.output(())
    if output.format == "json" and filename == "-":
        output.print_value([_document(obj) for obj in objects])
        return
    try:
        written = _write(session, filename, objects)
    except OSError as exc:
        raise ExoError(
            f"cannot write {exc.filename or filename}: {exc.strerror or exc}",
            hint="Name another place with -f.",
        ) from exc
    if written and output.is_structured:
        output.print_value(written)


def _write(
    session: Session, filename: str, objects: Sequence[LiveObject]
) -> list[dict[str, object]]:
    """Write the objects, and return which file each is in; none for stdout."""
    if filename == "-":
        click.echo("---\n".join(obj.manifest() for obj in objects), nl=False)
        return []
    path = Path(filename)
    objects, places = _as_in_files(path, objects)
    if not filename.endswith(os.sep) and not path.is_dir():
        _write_file(path, "---\n".join(obj.manifest() for obj in objects))
        session.success(f"{len(objects)} objects written to {path}")
        return [_written(obj, path) for obj in objects]
    path.mkdir(parents=True, exist_ok=True)
    written = []
    for obj in objects:
        file = places.get(obj.label) or path / f"{obj.kind.lower()}-{object_file_name(obj)}.yaml"
        _write_file(file, obj.manifest())
        session.success(f"{obj.label} written to {file}")
        written.append(_written(obj, file))
    return written


def _as_in_files(
    path: Path, objects: Sequence[LiveObject]
) -> tuple[list[LiveObject], dict[str, Path]]:
    """Give objects the names that they have in the files there, and say which file is one's own.

    The API knows a model by its source alone; its `metadata.name` is the files'. A file that holds
    several objects is nobody's own: to write one would lose the others.
    """
    from exo_inference.cli.gitops.live import MODEL_KIND, label
    from exo_inference.resources.manifest_files import load_manifests

    if not path.exists():
        return list(objects), {}
    try:
        manifests = load_manifests([str(path)])
    except UsageError:
        return list(objects), {}  # nothing that could be kept
    in_files = Counter(manifest.file for manifest in manifests)
    names, places = {}, {}
    for manifest in manifests:
        resource = manifest.resource
        is_model = resource.kind == MODEL_KIND
        key = label(
            resource.kind, str(manifest.spec["source"]) if is_model else resource.metadata.name
        )
        names[key] = resource.metadata.name
        if in_files[manifest.file] == 1:
            places[key] = Path(manifest.file)
    shared = {key for key in names if key not in places}
    kept = [replace(obj, file_name=names.get(obj.label, "")) for obj in objects]
    if path.is_dir() and shared:
        twice = ", ".join(sorted(shared & {obj.label for obj in objects}))
        if twice:
            raise ExoError(
                f"{path} has files with several objects: {twice} would be there twice",
                hint="Give each object a file of its own, or export into another directory.",
            )
    return kept, places


def _written(obj: LiveObject, file: Path) -> dict[str, object]:
    return {"kind": obj.kind, "name": obj.name, "id": obj.id, "file": str(file)}


def object_file_name(obj: LiveObject) -> str:
    """Return the object's `metadata.name`; a name that is no safe file name becomes one."""
    from exo_inference.resources import model_object_name

    is_safe = obj.object_name.replace("-", "").isalnum() and obj.object_name.isascii()
    return obj.object_name if is_safe else model_object_name(obj.name)


def _document(obj: LiveObject) -> dict[str, object]:
    import yaml

    document: dict[str, object] = yaml.safe_load(obj.manifest())
    return document


def _write_file(file: Path, text: str) -> None:
    """Replace a file whole: a reader sees the old one or the new one."""
    from exo_inference.state_dir import write_atomically

    write_atomically(file, text, mode=0o644)
