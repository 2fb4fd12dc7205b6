"""`judge`: everything that is wrong with a deployment, and its plan. Pure.

Flags that the engine refuses leave no plan: it would be of another deployment than was meant. Rules
between flags, model and GPU are reported beside them. A rule that names the user's flag is preferred
to the planner's own check of the same thing.

Admission (`controller/admission/fit.py`), `POST /ai/plan` and `deployment plan` call it, so that all three say the
same. Reading flags is left to `engines/`, memory and speed to `planner/`, what to send to `report.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from exo_inference.engine_names import GPU_ENGINE, facts_of
from exo_inference.engines import get_engine
from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.catalogue import judging_release
from exo_inference.engines.flags.problems import ParameterProblem, problem_of
from exo_inference.engines.flags.reader import Reading
from exo_inference.engines.model_rules import GpuFacts, ModelFacts, check_model_rules
from exo_inference.engines.registry import flags_release, releases_of
from exo_inference.planner import (
    Advice,
    Architecture,
    EngineParameters,
    Gpu,
    Improvement,
    Plan,
    Verdict,
    advise,
    improve,
    plan,
)
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.parameters import WrongSetting
from exo_inference.planner.problem import OF_PROCESSOR, Problem
from exo_inference.preflight import gguf_engine, other_engines
from exo_inference.preflight.engine_start import Start
from exo_inference.preflight.flags import read_flags, settings_of
from exo_inference.preflight.sure_length import with_sure_length
from exo_inference.preflight.unlisted import is_unlisted, unlisted_note, unlisted_problems

_SIZES = frozenset({"tensor-parallel", "pipeline-parallel", "parallel-size"})
_JUDGED_BY_FLAG_RULES = {
    "tensor-parallel-size": _SIZES,
    "pipeline-parallel-size": _SIZES,
    "data-parallel-size": _SIZES,
    "quantization": frozenset({"quantization"}),
    "dtype": frozenset({"dtype"}),
    "kv-cache-dtype": frozenset({"kv-cache-dtype"}),
}
"""Codes of the planner's problems that `check_model_rules` reports with the user's own flag, by the
name of that flag."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: one replica.

    Attributes:
        model: None where nothing is known about it; then only the flags are judged.
        gpu: None where nothing is known about it; then memory is not judged.
        gpu_count: GPUs of one replica.
        flags: the user's engine flags.
        given: values that the platform sets where the flags do not, by the names of flags.
        plans_unlisted: a release whose flags are not known is planned all the same, with flags unchecked.
        engine: one of `engines.ENGINES`.
        engine_version: a release of vLLM, or of another engine its own; None is the platform's default.
        draft: the draft model that the flags name, when known.
        free_bytes: free on each GPU now, when known.
        revision_pinned: the model's revision is a commit.
    """

    model: Architecture | None
    gpu: Gpu | None
    gpu_count: int
    flags: tuple[str, ...] = ()
    engine: str = GPU_ENGINE
    engine_version: str | None = None
    draft: Architecture | None = None
    free_bytes: int | None = None
    revision_pinned: bool | None = None
    given: Mapping[str, int] = field(default_factory=dict)
    plans_unlisted: bool = False

    @property
    def version(self) -> str:
        """The release whose flags these are."""
        return flags_release(self.engine, self.engine_version)

    @property
    def is_unlisted(self) -> bool:
        """Whether it is planned without that its flags can be checked."""
        return self.plans_unlisted and is_unlisted(self.engine, self.engine_version)

    @property
    def reading_version(self) -> str | None:
        """The release by whose list the flags are read; None is the engine's default one."""
        if not self.is_unlisted:
            return self.engine_version
        takes_vllm_flags = facts_of(self.engine).takes_vllm_flags
        return judging_release(self.version) if takes_vllm_flags else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found.

    Attributes:
        reading: the subject's flags, as they were read.
        flag_problems: of single flags, in their order; each refuses.
        plan: None where the flags cannot be read, or model or GPU are not known.
        plan_problems: the plan's, without those that `flag_problems` says better.
        advice: ways to make it fit; empty where it does.
        improvements: what a plan that fits could do better.
        notes: why there is no plan.
    """

    subject: Subject
    reading: Reading
    flag_problems: tuple[ParameterProblem, ...] = ()
    plan: Plan | None = None
    plan_problems: tuple[Problem, ...] = ()
    advice: tuple[Advice, ...] = ()
    improvements: tuple[Improvement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict over flags and memory together."""
        if self.flag_problems:
            return Verdict.REFUSED
        return self.plan.verdict if self.plan is not None else Verdict.UNKNOWN


MOST_LAYERS = 200
"""Different layers of a model that ways out are looked for. A plan takes as long as it has of them, and ways are dozens of plans."""


def judge(
    subject: Subject, *, with_advice: bool = True, other_gpus: tuple[Gpu, ...] | None = None
) -> Judgement:
    """Judge a deployment before it is started.

    Args:
        subject: what is judged.
        with_advice: look for ways out and for improvements, which takes many plans.
        other_gpus: GPUs that advice may take instead; by default Exoscale's families.

    Raises:
        UsageError: the release of the engine is not one that can be judged.
    """
    if with_advice and subject.model is not None and len(subject.model.layer_counts) > MOST_LAYERS:
        return _without_ways(judge(subject, with_advice=False))
    engine = get_engine(subject.engine)
    reading = read_flags(subject.flags, subject.engine, subject.reading_version)
    problems = unlisted_problems(reading, engine) if subject.is_unlisted else reading.problems
    reported = {problem.flag for problem in problems}
    rules = [each for each in _check_rules(subject, reading) if each.flag not in reported]
    if problems:
        together = sorted([*problems, *rules], key=lambda problem: problem.index)
        return Judgement(subject, reading, flag_problems=tuple(together))
    if isinstance(engine, ClusterEngine):
        unplanned = Judgement(subject, reading, flag_problems=tuple(rules))
        return _judge_other(engine, unplanned, with_advice=with_advice, other_gpus=other_gpus)
    try:
        parameters = settings_of(reading, subject.engine, subject.version, subject.given)
    except WrongSetting as error:
        return Judgement(subject, reading, flag_problems=(_unplanned(reading, error), *rules))
    if subject.model is None or subject.gpu is None:
        return Judgement(subject, reading, flag_problems=tuple(rules), notes=(_lack(subject),))
    model, gpu = subject.model, subject.gpu

    def planned(wanted: EngineParameters) -> Plan:
        return plan(
            model, gpu, subject.gpu_count, wanted,
            draft=subject.draft, free_bytes=subject.free_bytes,
        )  # fmt: skip

    found = with_sure_length(
        planned(parameters), lambda length: planned(replace(parameters, max_model_len=length))
    )
    others = _not_reported(found.problems, rules, reading)
    judgement = Judgement(subject, reading, tuple(rules), _told(subject, found), others)
    return _with_proposals(judgement, parameters, other_gpus) if with_advice else judgement


def _without_ways(judgement: Judgement) -> Judgement:
    """Add that no ways out and no improvements were looked for."""
    if judgement.plan is None:
        return judgement
    note = f"ways out are looked for of models with up to {MOST_LAYERS} different layers"
    found = replace(judgement.plan, notes=(*judgement.plan.notes, note))
    return replace(judgement, plan=found)


def _with_proposals(
    judgement: Judgement, parameters: EngineParameters, other_gpus: tuple[Gpu, ...] | None
) -> Judgement:
    """Add the ways out of what may not fit, or what could be better about what does."""
    subject, found = judgement.subject, judgement.plan
    if subject.model is None or subject.gpu is None or found is None:
        return judgement
    if any(problem.code == OF_PROCESSOR for problem in found.problems):
        return judgement  # no other flag or GPU mends it
    advice: tuple[Advice, ...] = ()
    improvements: tuple[Improvement, ...] = ()
    if found.verdict in (Verdict.REFUSED, Verdict.TIGHT):
        advice = advise(
            subject.model, subject.gpu, subject.gpu_count, parameters, other_gpus=other_gpus,
            releases=releases_of(subject.engine), draft=subject.draft, free_bytes=subject.free_bytes,
        )  # fmt: skip
        advice = tuple(each for each in advice if _is_read(subject, found, each))
    elif found.verdict is Verdict.FITS and not judgement.flag_problems:
        improvements = improve(
            subject.model, subject.gpu, subject.gpu_count, parameters,
            other_gpus=other_gpus, draft=subject.draft, free_bytes=subject.free_bytes,
        )  # fmt: skip
    return replace(judgement, advice=advice, improvements=improvements)


def _is_read(subject: Subject, found: Plan, advice: Advice) -> bool:
    """Whether the release that a way out names reads all flags that it is to have."""
    parameters = advice.plan.parameters
    if parameters.engine_version == found.parameters.engine_version:
        return True
    reading = read_flags(tuple(parameters.format()), subject.engine, parameters.engine_version)
    there = replace(subject, engine_version=parameters.engine_version)
    return not reading.problems and not _check_rules(there, reading)


class _Sizing(Protocol):
    """How the memory of an engine is planned that takes no flags of vLLM: a module of this package."""

    def size(self, start: Start) -> Plan | str: ...

    def advise(
        self, start: Start, *, other_gpus: tuple[Gpu, ...] | None = None
    ) -> tuple[Advice, ...]: ...


def _sizing(engine: ClusterEngine) -> _Sizing:
    return other_engines if engine.gguf is None else gguf_engine


def _judge_other(
    engine: ClusterEngine,
    unplanned: Judgement,
    *,
    with_advice: bool,
    other_gpus: tuple[Gpu, ...] | None,
) -> Judgement:
    """Judge what takes no flags of vLLM, and add the ways out that are known of it."""
    subject, reading, rules = unplanned.subject, unplanned.reading, unplanned.flag_problems
    if subject.model is None or subject.gpu is None:
        return replace(unplanned, notes=(_lack(subject),))
    start = Start(
        engine=engine, version=subject.version, reading=reading, model=subject.model, gpu=subject.gpu,
        gpu_count=subject.gpu_count, free_bytes=subject.free_bytes,
    )  # fmt: skip
    found = _sizing(engine).size(start)
    if isinstance(found, str):
        judged = replace(unplanned, notes=(found,))
    else:
        others = _not_reported(found.problems, rules, reading)
        judged = replace(unplanned, plan=_told(subject, found), plan_problems=others)
    if not with_advice or judged.verdict not in (Verdict.REFUSED, Verdict.TIGHT):
        return judged
    advice = _sizing(engine).advise(start, other_gpus=other_gpus)
    counts = {each.plan.gpu_count for each in advice}
    shared = {count for count in counts if not engine.check_sizes(reading, count)}
    return replace(judged, advice=tuple(each for each in advice if each.plan.gpu_count in shared))


def _told(subject: Subject, found: Plan) -> Plan:
    """Return the plan with a note where its flags were not checked."""
    if not subject.is_unlisted:
        return found
    note = unlisted_note(subject.engine, subject.version)
    return replace(found, notes=(note, *found.notes))


def _not_reported(
    problems: tuple[Problem, ...], rules: Sequence[ParameterProblem], reading: Reading
) -> tuple[Problem, ...]:
    """Return the plan's problems, without those that a rule has reported with the user's flag."""
    known = reading.release.by_spelling
    names = [known[rule.flag].name for rule in rules if rule.flag in known]
    reported = {code for name in names for code in _JUDGED_BY_FLAG_RULES.get(name, ())}
    return tuple(each for each in problems if each.code not in reported)


def _unplanned(reading: Reading, error: WrongSetting) -> ParameterProblem:
    """Return the planner's refusal of a value as a problem of the flag that it is of."""
    use = reading.find(error.name.replace("_", "-"))
    assert use is not None, "the platform gives right values"
    return problem_of(use, "type", error.text)


def _check_rules(subject: Subject, reading: Reading) -> list[ParameterProblem]:
    engine = get_engine(subject.engine)
    if isinstance(engine, ClusterEngine):
        # Flags that cannot be read are reported already, and have no sizes.
        return [] if reading.problems else engine.check_sizes(reading, subject.gpu_count)
    if not facts_of(subject.engine).has_model_rules or subject.is_unlisted:
        return []
    return check_model_rules(
        reading, model=_model_facts(subject), gpu=_gpu_facts(subject), given=subject.given
    )


def _model_facts(subject: Subject) -> ModelFacts:
    model = subject.model
    if model is None or model.cannot_size is not None:
        return ModelFacts(revision_pinned=subject.revision_pinned)
    specs = [layer.kv for layer in model.layers if layer.kv is not None]
    heads = {spec.num_heads for spec in specs if spec.kind not in (KvKind.LATENT, KvKind.STATE)}
    return ModelFacts(
        revision_pinned=subject.revision_pinned,
        num_attention_heads=model.num_heads or None,
        num_key_value_heads=heads.pop() if len(heads) == 1 else None,
        vocab_size=model.vocab_size or None,
        num_layers=len(model.layers) or None,
        quantization=model.quantization.method if model.quantization is not None else None,
        draft_vocab_size=subject.draft.vocab_size if subject.draft is not None else None,
    )


def _gpu_facts(subject: Subject) -> GpuFacts | None:
    gpu = subject.gpu
    if gpu is None or gpu.vendor == "cpu":
        return None
    capability = None
    if gpu.capability is not None:
        major, minor = divmod(round(gpu.capability * 10), 10)
        capability = (major, minor)
    return GpuFacts(gpu.name, subject.gpu_count, capability)


def _lack(subject: Subject) -> str:
    known = {"model": subject.model, "GPU": subject.gpu}
    unknown = " and the ".join(name for name, each in known.items() if each is None)
    return f"nothing is known about the {unknown}, so memory was not judged"
