"""From the fields of a request to sampling parameters.

Shared by completions and chat. Defaults come from the model's generation_config.json, as vLLM does
it; what a request says wins over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exo_engine.arguments import ServerOptions
from exo_engine.errors import ConfigurationError, EngineError, RequestError
from exo_engine.sampling_params import SamplingParams
from exo_engine.server.api_errors import bad_request, from_engine, not_supported
from exo_engine.server.fields import Fields
from exo_engine.tokenizer.tokenizer import Tokenizer, read_json

_DEFAULT_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MAX_CHOICES = 128
_SEEDS = 2**63
_MOST_TOP_K = 2**31 - 1
_MAX_DIGITS = 20
_MAX_STOPS = 64
_MAX_STOP_CHARACTERS = 1024
"""vLLM has no limits on `stop` and OpenAI takes 4; each costs a little for every character."""
_MAX_SALT_CHARACTERS = 1024
_MAX_TOKEN_ENTRIES = 1024
"""Of stop_token_ids and of logit_bias, as OpenAI has it."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What holds for requests that do not say otherwise."""

    values: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    """Most tokens of any answer, also of requests that ask for more."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request is to be answered, apart from its prompt."""

    params: SamplingParams
    """Without max_tokens where the request names none."""
    num_choices: int
    stop: tuple[str, ...]
    is_stop_included: bool
    skips_special_tokens: bool
    priority: int
    cache_salt: str | None
    """Only requests with the same one share keys and values."""
    constrained_by: str = "structured_outputs"
    """The field that a grammar came from."""

    def params_of(self, choice: int, max_tokens: int) -> SamplingParams:
        """Return the parameters of one choice; each has a seed of its own."""
        seed = self.params.seed
        return replace(
            self.params,
            max_tokens=max_tokens,
            seed=None if seed is None else (seed + choice) % _SEEDS,
        )


def load_defaults(options: ServerOptions) -> SamplingDefaults:
    """Read the defaults that --generation-config names.

    Raises:
        ConfigurationError: a value is not a number, or the directory has no such file.
    """
    values: dict[str, Any] = {}
    if options.generation_config == "auto":
        values = read_json(options.model_dir / "generation_config.json")
    elif options.generation_config != "vllm":
        path = Path(options.generation_config) / "generation_config.json"
        if not path.is_file():
            raise ConfigurationError(
                f"cannot read sampling defaults: there is no {path}",
                param="generation-config",
                hint="Give a directory with generation_config.json, `auto` or `vllm`.",
            )
        values = read_json(path)
    values = {**values, **options.generation_overrides}
    fields = Fields(values)
    try:
        found = {
            name: fields.number(name, 0.0)
            for name in _DEFAULT_FIELDS
            if values.get(name) is not None
        }
        max_tokens = fields.integer("max_new_tokens", minimum=1)
        SamplingParams(**_typed(found))
    except EngineError as exc:
        raise ConfigurationError(
            f"wrong sampling default: {exc.message}",
            param="generation-config",
            hint="Correct generation_config.json, or use --generation-config vllm.",
        ) from exc
    return SamplingDefaults(found, max_tokens)


def read_sampling(
    fields: Fields,
    defaults: SamplingDefaults,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
    max_tokens: int | None,
    tokenizer: Tokenizer,
    vocabulary_size: int,
) -> Sampling:
    """Read everything that steers sampling.

    Args:
        fields: the request.
        defaults: for what it leaves out.
        logprobs: how many alternatives to report per token, if any.
        prompt_logprobs: the same for the prompt.
        max_tokens: what the request names; it has a name of its own on each route.
        tokenizer: names the tokens that end an answer.
        vocabulary_size: token ids must be below.

    Raises:
        ApiError: a field is wrong, or asks for what this engine does not offer.
    """
    num_choices = fields.integer("n", 1, minimum=1, maximum=_MAX_CHOICES) or 1
    best_of = fields.integer("best_of", num_choices)
    if best_of != num_choices:
        raise not_supported("best_of", "best_of")
    numbers = {name: fields.number(name, default) for name, default in _numbers(defaults).items()}
    try:
        params = SamplingParams(
            **_typed(numbers),
            seed=fields.integer("seed", minimum=-_SEEDS, maximum=_SEEDS - 1),
            max_tokens=max_tokens,
            min_tokens=fields.integer("min_tokens", 0, minimum=0) or 0,
            stop_token_ids=_read_stop_token_ids(fields, tokenizer, vocabulary_size),
            ignore_eos=fields.boolean("ignore_eos"),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            logit_bias=_read_logit_bias(fields, vocabulary_size),
            allowed_token_ids=_read_allowed(fields, vocabulary_size),
        )
    except RequestError as exc:
        raise from_engine(exc) from exc
    return Sampling(
        params=params,
        num_choices=num_choices,
        stop=_read_stop(fields),
        is_stop_included=fields.boolean("include_stop_str_in_output"),
        skips_special_tokens=fields.boolean("skip_special_tokens", True),
        priority=fields.integer("priority", 0) or 0,
        cache_salt=_read_cache_salt(fields),
    )


def _read_cache_salt(fields: Fields) -> str | None:
    salt = fields.string("cache_salt")
    if salt is not None and not 0 < len(salt) <= _MAX_SALT_CHARACTERS:
        raise fields.wrong("cache_salt", f"a string of 1 to {_MAX_SALT_CHARACTERS} characters")
    return salt


def _numbers(defaults: SamplingDefaults) -> dict[str, float]:
    neutral = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    return {**neutral, **defaults.values}


def _typed(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Give top_k its type; -1 switches it off, as in vLLM."""
    if "top_k" not in numbers:
        return dict(numbers)
    top_k = numbers["top_k"]
    if top_k != int(top_k) or not -1 <= top_k <= _MOST_TOP_K:
        raise bad_request(
            f"top_k must be an integer up to {_MOST_TOP_K}, -1 or 0 for off, got {top_k:g}", "top_k"
        )
    return {**numbers, "top_k": max(0, int(top_k))}


def _read_stop_token_ids(
    fields: Fields, tokenizer: Tokenizer, vocabulary_size: int
) -> tuple[int, ...]:
    """Return the request's stop tokens and the tokenizer's own end, which the core may not know."""
    asked = fields.token_ids("stop_token_ids", vocabulary_size, most=_MAX_TOKEN_ENTRIES)
    own = () if fields.boolean("ignore_eos") else tokenizer.eos_token_ids
    return (*asked, *(each for each in own if 0 <= each < vocabulary_size and each not in asked))


def _read_allowed(fields: Fields, vocabulary_size: int) -> tuple[int, ...] | None:
    """Return the only tokens that may come; an empty list is refused, as in vLLM."""
    if not fields.has("allowed_token_ids"):
        return None
    return fields.token_ids("allowed_token_ids", vocabulary_size, most=vocabulary_size)


def _read_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.values.get("stop")
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return ()
    if isinstance(stops, list) and len(stops) > _MAX_STOPS:
        raise bad_request(f"stop must have at most {_MAX_STOPS} strings, got {len(stops)}", "stop")
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise fields.wrong("stop", "a string that is not empty, or a list of such strings")
    longest = max(map(len, stops), default=0)
    if longest > _MAX_STOP_CHARACTERS:
        raise bad_request(
            f"a stop string must have at most {_MAX_STOP_CHARACTERS} characters, got {longest}",
            "stop",
        )
    return tuple(stops)


def _read_logit_bias(fields: Fields, vocabulary_size: int) -> dict[int, float] | None:
    bias: dict[int, float] = {}
    entries = fields.mapping("logit_bias")
    if len(entries) > _MAX_TOKEN_ENTRIES:
        raise bad_request(
            f"logit_bias must have at most {_MAX_TOKEN_ENTRIES} entries, got {len(entries)}",
            "logit_bias",
        )
    for key, value in entries.items():
        is_plain = len(key) <= _MAX_DIGITS and key.isascii() and key.isdigit()
        is_token = is_plain and int(key) < vocabulary_size
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_token and is_number and -100 <= value <= 100):
            raise bad_request(
                f"logit_bias must map token ids below {vocabulary_size} to numbers from -100 to "
                f"100, got {key[:20]!r}: {str(value)[:20]}",
                "logit_bias",
            )
        token_id = int(key)
        if token_id in bias:
            raise bad_request(
                f"logit_bias names token {token_id} twice, the second time as {key!r}", "logit_bias"
            )
        bias[token_id] = float(value)
    return bias or None
