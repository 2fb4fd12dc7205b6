"""Checks of single fields of a wanted deployment, each of which adds what is wrong to the issues. Pure.

`deployment.py` asks for all of them, so that a refusal lists every problem; `routes/plans.py` for those of a plan.
"""

from __future__ import annotations

import re
import shlex

from exo_inference.controller.admission.problems import (
    Issue,
    choice_issue,
    field_issue,
    short_number,
)
from exo_inference.controller.admission.world import World, find_family, find_model
from exo_inference.engine_names import facts_of
from exo_inference.engines import ENGINES, VERSIONS, releases_of
from exo_inference.foreign_files.errors import shown
from exo_inference.hub import is_in_place
from exo_inference.hub.gguf_files import split_tag
from exo_inference.model_description import TOKENIZER_NAME
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    MAX_REPLICAS,
    Resource,
)
from exo_inference.resources.states import model_state
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.simulated_gpus import MODEL_REVISION
from exo_inference.wire import ModelRef, ModelState

MAX_PARAMETERS = 200
"""Items of `inference-engine-parameters`."""

MAX_PARAMETERS_BYTES = 32 * 1024
"""Of them together. The kernel takes 128 KiB as one argument of a process, and Kubernetes 256 KiB of annotations,
where a character may be written as six."""

MAX_NAME_LENGTH = 63
"""Characters of a deployment's name: it is a DNS label."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_replicas(replicas: int, issues: list[Issue], *, minimum: int = 1) -> int:
    """Return the number of replicas, or add an issue."""
    if not minimum <= replicas <= MAX_REPLICAS:
        expected = f"must be from {minimum} to {MAX_REPLICAS}, found {short_number(replicas)}"
        issues.append(field_issue("replicas", expected))
    return replicas


def check_version(version: str | None, engine: str | None, issues: list[Issue]) -> str | None:
    """Return the engine's release, None for the default one; an unknown one adds an issue."""
    releases = releases_of(engine) if engine in ENGINES else VERSIONS
    if version is not None and version not in releases:
        issues.append(choice_issue("inference-engine-version", version[:64], releases))
    return version


def check_parameters(wanted: WantedDeployment, issues: list[Issue]) -> tuple[str, ...] | None:
    """Return the engine's flags; too many of them are None and add an issue."""
    parameters = wanted.engine_parameters or ()
    size = sum(len(item.encode(errors="replace")) for item in parameters)
    if len(parameters) <= MAX_PARAMETERS and size <= MAX_PARAMETERS_BYTES:
        return parameters
    found = f"must have at most {MAX_PARAMETERS} items, found {len(parameters)}"
    if size > MAX_PARAMETERS_BYTES:
        found = f"must have at most {MAX_PARAMETERS_BYTES} bytes together, found {size}"
    issues.append(field_issue("inference-engine-parameters", found))
    return None


def suggest_name(name: str) -> str:
    """Return a valid deployment name that resembles this one."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:63].strip("-") or "my-deployment"


def check_name(name: str | None, world: World, issues: list[Issue], *, uid: str | None) -> str:
    """Return the name of a deployment; add an issue if it is none, or that of another than `uid`."""
    if name is None:
        return ""  # reported already
    if len(name) > MAX_NAME_LENGTH:
        text = f"is too long: found {len(name)} characters, at most {MAX_NAME_LENGTH}"
        issues.append(field_issue("name", text))
        return name[:64]
    if not _LABEL.fullmatch(name):
        text = (
            f"{name!r} is not a deployment name: 1 to 63 lower-case letters, digits and '-', "
            f"beginning and ending with a letter or digit; try {suggest_name(name)!r}"
        )
        issues.append(Issue(text, "$['name']", text))
        return name
    for other in world.deployments:
        if other.metadata.name == name and other.metadata.uid != uid:
            issues.append(_taken("deployment", name, other))
    return name


def _taken(noun: str, name: str, other: Resource) -> Issue:
    text = f"the name {name!r} is taken by the {noun} {other.metadata.uid}"
    if other.metadata.deletion_timestamp is not None:
        text += ", which is being deleted; repeat this when it is gone"
    return Issue(text, "$['name']", text, 409)


def check_model(ref: ModelRef | None, world: World, issues: list[Issue]) -> str:
    """Return the source of the model that is meant; add an issue if there is none or it cannot be used."""
    if ref is None:
        return ""  # reported already
    if not ref.id and not ref.name:
        issues.append(field_issue("model", "needs an id or a name"))
        return ""
    model = find_model(ref, world.models)
    if model is None:
        issues.append(no_model_issue(ref))
        return ref.name or ""
    state, details = model_state(model)
    if model.metadata.deletion_timestamp is not None:
        text = f"the model {model.spec.source} is being deleted"
        issues.append(Issue(text, "$['model']", text, 412))
    elif state == ModelState.ERROR:
        text = f"the model {model.spec.source} cannot be used: {details}"
        issues.append(Issue(text, "$['model']", text, 412))
    return model.spec.source


def no_model_issue(ref: ModelRef) -> Issue:
    """Return the issue of a reference that means no model here."""
    if ref.id and ref.name:
        text = f"no model has both the id {ref.id[:64]!r} and the name {ref.name[:256]!r}"
    elif ref.name:
        text = (
            f"there is no model {ref.name[:256]!r}; create it first with "
            f"`exo dedicated-inference model create {shlex.quote(shown(ref.name, 256))}`"
        )
    else:
        text = f"there is no model with the id {(ref.id or '')[:64]!r}; list the models"
    return Issue(text, "$['model']", text)


def check_family(
    wanted: WantedDeployment, world: World, issues: list[Issue]
) -> InstanceTypeInfo | None:
    """Return the GPU family; add issues if it is not there or fewer than one GPU is asked for."""
    gpu_type, count = wanted.gpu_type, wanted.gpu_count
    family = find_family(gpu_type, world.families)
    if gpu_type is not None and family is None and not world.families:
        text = "cannot be had: no node takes replicas at the moment"
        issues.append(field_issue("gpu-type", text, status=412))
    elif gpu_type is not None and family is None:
        families = sorted(f.family for f in world.families)
        issues.append(choice_issue("gpu-type", gpu_type[:64], families))
    if count is not None and count < 1:
        issues.append(field_issue("gpu-count", f"must be at least 1, found {short_number(count)}"))
    return family


def check_has_weights(
    source: str, family: InstanceTypeInfo | None, world: World, issues: list[Issue]
) -> None:
    """Refuse a model whose weights were never downloaded on GPUs that are there."""
    model = next((model for model in world.models if model.spec.source == source), None)
    if model is None or family is None or family.simulated:
        return
    if model.status.revision == MODEL_REVISION:
        simulated = sorted(each.family for each in world.families if each.simulated)
        step = (
            f"choose one of: {', '.join(simulated)}"
            if simulated
            else "delete it and create it again, which downloads it"
        )
        text = (
            f"the model {source} is simulated, without its weights, and {family.family} is real; "
            f"{step}"
        )
        issues.append(Issue(text, "$['model']", text, 412))


def check_form(
    source: str, engine: str | None, family: InstanceTypeInfo | None, issues: list[Issue]
) -> bool:
    """Refuse an engine for a model whose files it does not load: GGUF, which a type behind a colon names, or safetensors.

    Returns:
        Whether it may load them, so that more can be said of its start.
    """
    is_gguf = not is_in_place(source) and bool(split_tag(source)[1])
    if engine is None or facts_of(engine).loads_gguf == is_gguf:
        return True
    possible = () if family is None else family.possible_engines
    others = [name for name in possible if facts_of(name).loads_gguf == is_gguf]
    found = f"loads no *.gguf files, and {source} is one"
    steps = [f"choose another engine: {', '.join(others)}"] if others else []
    if not is_gguf:
        found = f"loads *.gguf files, and {source} has none"
        steps += ["create a model by the type of a GGUF file, such as ORG/NAME-GGUF:Q4_K_M"]
    text = f"{engine} {found}; {', or '.join(steps) or 'choose another model'}"
    issues.append(Issue(text, "$['inference-engine']", text, 412))
    return False


def check_has_tokenizer(
    source: str,
    engine: str | None,
    family: InstanceTypeInfo | None,
    world: World,
    issues: list[Issue],
) -> None:
    """Refuse an engine that reads tokenizer.json for a model whose tokenizer has another form."""
    known = world.known.get(source)
    if known is None or not known.lacks_tokenizer_json:
        return
    if family is None or family.simulated or not facts_of(engine).needs_tokenizer_json:
        return
    text = (
        f"{facts_of(engine).title} reads {TOKENIZER_NAME}, and {source} has none; write it with "
        "`save_pretrained` of the model's tokenizer, or choose another engine"
    )
    issues.append(Issue(text, "$['model']", text, 412))
