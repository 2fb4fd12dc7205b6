"""`metrics`: what Prometheus reads, of a control plane on one machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from exo_inference.cli.rendering.terminal import print_data
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@command(
    "metrics",
    examples=[
        Example("See all metrics", "exo ai metrics"),
        Example(
            "Hand them to Prometheus' node exporter, from cron",
            "exo ai metrics > /var/lib/node_exporter/exo.prom.new && "
            "mv /var/lib/node_exporter/exo.prom.new /var/lib/node_exporter/exo.prom",
        ),
        Example(
            "See how many requests wait now",
            "exo ai metrics -O json | jq '.[] | select(.name == \"exo_gateway_held_requests\")'",
        ),
    ],
)
@pass_session
def metrics(session: Session) -> None:
    """Print the metrics of controller, gateway and engines for Prometheus.

    Of a control plane on one machine, in one page of text; `-O json` has one object a sample. Labels are
    ids. On a cluster Prometheus asks gateways and engines itself.
    """
    output = session.output(())
    with session.connect() as client:
        text = client.metrics()
    if output.is_structured:
        output.print_value(list(samples(text)))
    else:
        print_data(text)


def samples(text: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of a page; values that JSON has no numbers for are strings."""
    for line in text.split("\n"):
        found = _SAMPLE.fullmatch(line)
        if found is not None and not line.startswith("#"):
            labels = {name: _unescaped(value) for name, value in _LABEL.findall(found[2] or "")}
            yield {"name": found[1], "labels": labels, "value": _number(found[3])}


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)


def _number(text: str) -> float | str:
    if text.lstrip("+-").lower() in ("inf", "nan"):
        return text
    try:
        return float(text)
    except ValueError:
        return text
