"""The command line of `exo-engine`: from words to frozen settings.

Called by `exo_engine.server.main` once per process. Builds the parser from the table in
`exo_engine.flags`, turns every mistake into one `ConfigurationError` with a next step, and maps the
values to what the two processes need: `ServerOptions` for the HTTP side and `EngineConfig` for the
core. Reads two environment variables (EXO_ENGINE_API_KEY, VLLM_SERVER_DEV_MODE) and the file of --simulation. Imports no torch, so it answers at once.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from exo_engine import __version__
from exo_engine.config import EngineConfig
from exo_engine.errors import ConfigurationError
from exo_engine.flag import Flag, catalogue_entry
from exo_engine.flags import FLAGS
from exo_engine.simulation.file import Simulation, read_simulation
from exo_engine.vllm_flags import REFUSED

API_KEY_VARIABLE = "EXO_ENGINE_API_KEY"
DEV_MODE_VARIABLE = "VLLM_SERVER_DEV_MODE"
_SEE_PARAMETERS = "Run `exo-engine serve --help` for the flags of this engine."
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "T": 2**40,
}
_SUFFIXED = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kmgtKMGT])"
_MOST_DIGITS = 18
"""Of an integer, written out: what 64 bits hold, and what the control plane takes."""
_BOOLEAN_FLAGS = {f"--{flag.name}": flag for flag in FLAGS if flag.kind == "boolean"}
_TRUE_WORDS, _FALSE_WORDS = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """What the HTTP side needs to know."""

    served_model_names: tuple[str, ...]
    """Names that clients may ask for; the first is the one in answers."""
    model_dir: Path
    tokenizer_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    """Listen here instead of on host and port."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Bearer tokens that open /v1; empty: open to all who reach the socket."""
    chat_template: str | None = None
    chat_template_content_format: str = "auto"
    chat_template_variables: Mapping[str, Any] = field(default_factory=dict)
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    """How calls and reasoning stand in an answer: a name of a format, `none`, or by the template."""
    generation_config: str = "auto"
    generation_overrides: Mapping[str, Any] = field(default_factory=dict)
    response_role: str = "assistant"
    is_usage_forced: bool = False
    has_prompt_tokens_details: bool = True
    are_tokens_named_by_id: bool = False
    has_tokenizer_info: bool = False
    """Whether /tokenizer_info is there."""
    is_dev_mode_on: bool = False
    """Whether /server_info and /reset_prefix_cache are there."""
    is_request_log_on: bool = True
    is_stats_log_on: bool = True
    log_level: str = "info"
    shutdown_timeout_seconds: float = 120.0
    max_request_body_bytes: int = 32 * 2**20
    max_num_queued_requests: int | None = None
    max_logprobs: int = 20
    simulation: Simulation | None = None
    """What is simulated, to say so."""


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """`exo-engine serve`: both halves of its settings."""

    server: ServerOptions
    engine: EngineConfig


@dataclass(frozen=True, slots=True)
class PrintCommand:
    """A command that only prints: text for stdout."""

    text: str


def parse(
    argv: Sequence[str], environment: Mapping[str, str] = os.environ
) -> ServeCommand | PrintCommand:
    """Turn the words after the program's name into a command.

    Args:
        argv: the words, without the program's name.
        environment: where the API key may stand, and vLLM's development mode.

    Raises:
        ConfigurationError: a word is unknown, or a value is wrong; says which and what to do.
    """
    words = list(argv)
    command = words.pop(0) if words else "--help"
    if command in ("--version", "-v", "-V"):
        return PrintCommand(f"exo-engine {__version__}")
    if command in ("--help", "-h", "help"):
        return PrintCommand(_OVERVIEW)
    if command == "parameters":
        return PrintCommand(_parameters(words))
    if command == "serve":
        if any(word in ("-h", "--help") for word in words):
            return PrintCommand(build_parser().format_help().rstrip())
        return _parse_serve(words, environment)
    raise ConfigurationError(
        f"no command {command!r}",
        hint="Commands are serve, parameters, --version and --help.",
    )


def catalogue() -> list[dict[str, Any]]:
    """Describe the flags that a deployment may set, in the shape of the API's engine help."""
    return [catalogue_entry(flag) for flag in FLAGS if not flag.is_platform_owned]


@functools.cache
def build_parser() -> argparse.ArgumentParser:
    """Build the parser of `exo-engine serve`, flags grouped as in the table; reading changes nothing in it."""
    parser = _Parser(
        prog="exo-engine serve",
        allow_abbrev=False,
        description="Serve one model over an OpenAI-compatible API.",
        epilog="Flags may be written with - or _, and values after a space or after =.",
    )
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="Directory of the model.")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for flag in FLAGS:
        group = groups.setdefault(flag.section, parser.add_argument_group(flag.section))
        _add_flag(group, flag)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"cannot read the command line: {message}", hint=_SEE_PARAMETERS)


def _add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    spellings = (f"--{flag.name}", *flag.aliases)
    text = flag.description.replace("%", "%%")
    if flag.default is not None:
        text += f" (default: {flag.default})".replace("%", "%%")
    if flag.kind == "boolean":
        group.add_argument(
            *spellings,
            dest=flag.attribute,
            action=argparse.BooleanOptionalAction,
            default=flag.default,
            help=text,
        )
        return
    group.add_argument(
        *spellings,
        dest=flag.attribute,
        default=flag.default,
        nargs="+" if flag.kind == "strings" else None,
        metavar="{" + ",".join(flag.choices) + "}" if flag.choices else _METAVARS[flag.kind],
        help=text,
    )


_METAVARS = {
    "integer": "N",
    "float": "X",
    "string": "TEXT",
    "strings": "TEXT",
    "json": "JSON",
    "enum": "WORD",
}


def _parse_serve(words: list[str], environment: Mapping[str, str]) -> ServeCommand:
    namespace, unknown = build_parser().parse_known_args(_with_dashes(words))
    if unknown:
        raise _unknown_word(unknown[0])
    values = {flag.attribute: _checked(flag, getattr(namespace, flag.attribute)) for flag in FLAGS}
    model = _model_dir(namespace.model_tag, values["model"])
    if not values["api_key"] and environment.get(API_KEY_VARIABLE):
        values["api_key"] = [environment[API_KEY_VARIABLE]]
    values["is_dev_mode_on"] = _is_dev_mode_on(environment)
    if values["simulation"] is not None:
        values["simulation"] = read_simulation(Path(values["simulation"]))
    return ServeCommand(server=_server_options(model, values), engine=_engine_config(model, values))


def _is_dev_mode_on(environment: Mapping[str, str]) -> bool:
    """Read vLLM's variable, which is a whole number there."""
    value = environment.get(DEV_MODE_VARIABLE) or "0"
    if re.fullmatch("[0-9]{1,9}", value) is None:
        raise ConfigurationError(
            f"{DEV_MODE_VARIABLE} must be 0 or 1, got {value[:100]!r}",
            hint=f"Set {DEV_MODE_VARIABLE}=1 for /server_info and /reset_prefix_cache, or leave it out.",
        )
    return int(value) != 0


def _with_dashes(words: Sequence[str]) -> list[str]:
    """Write flags with dashes and `--flag=false` as `--no-flag`; values keep their underscores."""
    return [_normal_flag(word) if word.startswith("--") else word for word in words]


def _normal_flag(word: str) -> str:
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    flag = _BOOLEAN_FLAGS.get(name)
    if flag is None or not equals:
        return name + equals + value
    if value.lower() not in _TRUE_WORDS + _FALSE_WORDS:
        raise _refused(flag, value, "true or false")
    return f"--{'' if value.lower() in _TRUE_WORDS else 'no-'}{flag.name}"


def _unknown_word(word: str) -> ConfigurationError:
    name = word.split("=", 1)[0].lstrip("-")
    if not word.startswith("-"):
        return ConfigurationError(
            f"cannot read the command line: unexpected word {word!r}",
            hint="One model directory is served; put values after their flag.",
        )
    reason = REFUSED.get(name) or REFUSED.get(name.removeprefix("no-"))
    if reason:
        return ConfigurationError(
            f"--{name} is a vLLM flag that exo-engine does not support: {reason}",
            param=name,
            hint=f"Leave --{name} out. {_SEE_PARAMETERS}",
        )
    known = [spelling for flag in FLAGS for spelling in flag.spellings]
    close = difflib.get_close_matches(f"--{name}", known, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    return ConfigurationError(
        f"unknown flag {word.split('=', 1)[0]}", param=name, hint=guess + _SEE_PARAMETERS
    )


def _model_dir(tag: str | None, flag: str | None) -> str:
    if tag and flag and tag != flag:
        raise ConfigurationError(
            f"two models are named: {tag!r} and, by --model, {flag!r}",
            param="model",
            hint="Name the model directory once.",
        )
    if not (tag or flag):
        raise ConfigurationError(
            "no model is named", param="model", hint="Run `exo-engine serve <model-directory>`."
        )
    return str(tag or flag)


def _checked(flag: Flag, raw: Any) -> Any:
    """Convert one value to its type and hold it against the table."""
    if raw is None or (isinstance(raw, str) and raw in flag.auto_words):
        return None
    value = _converted(flag, raw)
    if flag.choices and value not in flag.choices:
        raise _refused(flag, raw, f"one of {', '.join(flag.choices)}")
    if flag.only_values and value not in flag.only_values:
        only = " or ".join(str(each) for each in flag.only_values)
        raise ConfigurationError(
            f"--{flag.name} is {value}, but only {only} is supported: {flag.only_reason}",
            param=flag.name,
            hint=f"Leave --{flag.name} out.",
        )
    if flag.minimum is not None and (
        value < flag.minimum or (flag.is_above_minimum and value == flag.minimum)
    ):
        word = "above" if flag.is_above_minimum else "at least"
        raise _refused(flag, raw, f"{word} {flag.minimum:g}")
    if flag.maximum is not None and value > flag.maximum:
        raise _refused(flag, raw, f"at most {flag.maximum:g}")
    return value


def _converted(flag: Flag, raw: Any) -> Any:
    if not isinstance(raw, str):
        return raw
    if flag.kind == "integer":
        return _integer(flag, raw)
    if flag.kind == "float":
        try:
            number = float(raw)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise _refused(flag, raw, "a number")
        return number
    if flag.kind == "json":
        try:
            value = json.loads(raw)
        except ValueError as exc:
            raise _refused(flag, raw, f"a JSON object ({exc})") from None
        if not isinstance(value, dict):
            raise _refused(flag, raw, "a JSON object")
        return value
    return raw


def _integer(flag: Flag, raw: str) -> int:
    expected = "a whole number, such as 4096, 32k or 32K" if flag.human else "a whole number"
    number, suffix = raw, ""
    if flag.human and (match := re.fullmatch(_SUFFIXED, raw)) is not None:
        number, suffix = match.groups()
    # As in vLLM, a fraction goes with a decimal suffix only: 25.6k is 25,600 and 25.6K is refused.
    if not suffix.islower() and re.fullmatch(r"[+-]?[0-9]+", number) is None:
        raise _refused(flag, raw, expected)
    if suffix:
        value = round(float(number) * _SUFFIXES[suffix])
        is_long = value >= 10**_MOST_DIGITS
    elif not (is_long := len(number.lstrip("+-")) > _MOST_DIGITS):
        value = int(number)
    if is_long:
        raise _refused(flag, raw, f"{expected}, of at most {_MOST_DIGITS} digits")
    return value


def _refused(flag: Flag, raw: object, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"--{flag.name} must be {expected}, got {str(raw)[:256]!r}",
        param=flag.name,
        hint=f"Change or leave out --{flag.name}.",
    )


def _server_options(model: str, values: Mapping[str, Any]) -> ServerOptions:
    is_request_log_on = (
        values["enable_log_requests"]
        and not values["disable_log_requests"]
        and not values["disable_uvicorn_access_log"]
    )
    return ServerOptions(
        served_model_names=tuple(values["served_model_name"] or (model,)),
        model_dir=Path(model),
        tokenizer_dir=Path(values["tokenizer"] or model),
        host=values["host"],
        port=values["port"],
        uds=values["uds"],
        api_keys=tuple(values["api_key"] or ()),
        chat_template=values["chat_template"],
        chat_template_content_format=values["chat_template_content_format"],
        chat_template_variables=values["default_chat_template_kwargs"] or {},
        tool_call_parser=values["tool_call_parser"],
        reasoning_parser=values["reasoning_parser"],
        generation_config=values["generation_config"],
        generation_overrides=values["override_generation_config"] or {},
        response_role=values["response_role"],
        is_usage_forced=values["enable_force_include_usage"],
        has_prompt_tokens_details=values["enable_prompt_tokens_details"],
        are_tokens_named_by_id=values["return_tokens_as_token_ids"],
        has_tokenizer_info=values["enable_tokenizer_info_endpoint"],
        is_dev_mode_on=values["is_dev_mode_on"],
        is_request_log_on=is_request_log_on,
        is_stats_log_on=not values["disable_log_stats"],
        log_level="debug"
        if values["uvicorn_log_level"] == "trace"
        else values["uvicorn_log_level"],
        shutdown_timeout_seconds=float(values["shutdown_timeout"]),
        max_request_body_bytes=values["max_request_body_bytes"],
        max_num_queued_requests=values["max_num_queued_reqs"],
        max_logprobs=values["max_logprobs"],
        simulation=values["simulation"],
    )


def _engine_config(model: str, values: Mapping[str, Any]) -> EngineConfig:
    return EngineConfig(
        model_dir=Path(model),
        dtype=values["dtype"],
        quantization=values["quantization"],
        device=values["device"],
        block_size=values["block_size"],
        num_gpu_blocks_override=values["num_gpu_blocks_override"],
        gpu_memory_utilization=values["gpu_memory_utilization"],
        kv_cache_bytes=values["kv_cache_memory_bytes"],
        kv_cache_dtype=values["kv_cache_dtype"],
        attention_backend=values["attention_backend"],
        max_model_len=values["max_model_len"],
        max_num_seqs=values["max_num_seqs"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
        seed=values["seed"],
        enable_prefix_caching=values["enable_prefix_caching"],
        enable_chunked_prefill=values["enable_chunked_prefill"],
        long_prefill_tokens=values["long_prefill_token_threshold"],
        max_partial_prefills=values["max_num_partial_prefills"],
        max_long_partial_prefills=values["max_long_partial_prefills"],
        enforce_eager=values["enforce_eager"],
        async_scheduling=values["async_scheduling"],
        batch_invariant=values["batch_invariant"],
        scheduling_policy=values["scheduling_policy"],
        max_logprobs=values["max_logprobs"],
        executor_backend=values["distributed_executor_backend"],
        tensor_parallel_size=values["tensor_parallel_size"],
        runner=values["runner"],
        convert=values["convert"],
        pooler=values["pooler_config"],
        num_threads=values["cpu_threads"],
        simulation=values["simulation"],
    )


def _parameters(words: Sequence[str]) -> str:
    if list(words) == ["--json"]:
        return json.dumps(catalogue(), indent=2, ensure_ascii=False)
    if words:
        raise ConfigurationError(
            f"`exo-engine parameters` takes only --json, got {words[0]!r}",
            hint="Run `exo-engine parameters` for a page to read.",
        )
    return build_parser().format_help().rstrip()


_OVERVIEW = """\
usage: exo-engine COMMAND ...

  serve MODEL [flags]   serve one model over an OpenAI-compatible API (serve --help lists the flags)
  parameters [--json]   describe the flags
  --version             print the version"""
