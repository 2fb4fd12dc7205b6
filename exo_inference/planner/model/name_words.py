"""What the words of a checkpoint's name say: its quantization, another size, another kind, a slip of the pen.

`catalog_models.py` reads names that are not bundled with it. Only the name is known here; which models are
bundled is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from exo_inference.planner.model.quantization import GGUF_BITS, gguf_type_of

PLAIN = "16-bit"
"""Of a name that says that nothing is quantized, whatever the model's own files are."""

FULL = "32-bit"
"""Of a name that says that the weights are stored in float32."""

UNQUANTIZED = (PLAIN, FULL)

_MIXES = {**{mix.lower(): mix for mix in GGUF_BITS}, "fp16": "F16"}
_WIDE = "|".join(mix for mix in _MIXES if "16" in mix)
"""Types of GGUF that say so only before that word: of other files they say that nothing is quantized."""
_MIX = "|".join(sorted(_MIXES.keys() - set(_WIDE.split("|")), key=len, reverse=True))
_4 = r"[-_.]?(int4|4[-_.]?bits?|w4a16|4b[-_.]128g)"
_8 = r"[-_.]?(int8|8[-_.]?bits?|w8a16)"

_OF_GGUF = "gguf alone"
"""Of a name that says GGUF and no type."""
_USUAL_TYPES = {r"gpt[-_.]?oss": "MXFP4_MOE"}
"""The type of a repository of GGUF files whose name says none, by a word of the model; of others it is Q4_K_M.
Experts of gpt-oss stay in MXFP4 in files of all names (https://github.com/NousResearch/hermes-agent/issues/116681)."""

_METHODS: tuple[tuple[str, str], ...] = (
    (r"[-_.]mxfp4[-_.](moe([-_.]gguf)?|gguf)", "MXFP4_MOE"),
    (r"[-_.](unquantized|dequantized)", PLAIN), (r"[-_.](nv)?fp4(a16)?", "nvfp4"), (r"[-_.]mxfp4(a16)?", "mxfp4"),
    (r"[-_.]mxfp8", "mxfp8"), (rf"[-_.]({_MIX})([-_.]gguf)?", "gguf"), (rf"[-_.]({_WIDE})[-_.]gguf", "gguf"), (r"[-_.]f(p|loat)?32[-_.]gguf", FULL),
    (r"[-_.]qat", ""),
    (rf"[-_.]awq({_4})?(?!{_8})", "awq"), (rf"[-_.]gptq{_8}|[-_.](int8|8bit)[-_.]gptq", "gptq-8bit"),
    (rf"[-_.]gptq({_4})?|[-_.](int4|4bit)[-_.]gptq", "gptq"), (r"[-_.]autoround", ""), (r"[-_.](int4|w4a16)", "w4a16"),
    (r"[-_.](bnb[-_.](8bit|int8)|8[-_.]?bits?|bnb8)", "bitsandbytes-8bit"), (r"[-_.](w8a8|int8)", "int8"),
    (r"[-_.]w8a16", "int8-weight-only"), (r"[-_.]fp8[-_.]block", "fp8-block"), (r"[-_.]fp8([-_.]dynamic)?", "fp8-channel"),
    (r"[-_.](bnb[-_.](4bit|nf4)|4[-_.]?bits?|bnb4|nf4)", "bitsandbytes"), (r"[-_.]gguf", _OF_GGUF), (r"[-_.]quantized", ""),
)  # fmt: skip
"""Words and the method that they say, the first that is found; an empty one says none by itself."""

_END = r"(?=$|[-_.])"
_TYPE_WORD = re.compile(r"[-_.](?:b?f(?:p|loat)?(?P<bits>16|32))" + _END)
"""The type of weights that are not quantized: `bf16`, `fp16`, `f16`, `bfloat16`, `float16`, and the same in 32 bits."""
_ALONE = re.compile(r"[-_.](quantized|autoround|qat)" + _END)
_UNSIZED = re.compile(
    r"(?:^|[-_.])(\d+(?:\.\d+)?[-_.]?(?:bits?|bpw)|exl[23]|hqq|w\d+a(?:fp)?\d+|int[1-8]|fp[3-8]|g(?!128)\d{2,4}|(?!128)\d{2,4}g|"
    r"compressed[-_]tensors|aqlm|quip|quipsharp|"
    r"smoothquant|bitnet|spqr|vptq|higgs|eetq|quanto|torchao|ternary|squeezellm|bnb|marlin|awq|gptq|"
    r"i?q\d(?:_\w+)?|tq\d_\d)" + _END
)


_USUALLY_4_BIT = ("awq", "gptq")


_MOST_LETTERS = 200
"""Of a name; the Hub takes 96 for each of its two parts."""


_FORMS = {
    "onnx": "ONNX", "mlx": "MLX", "openvino": "OpenVINO", "coreml": "Core ML",
}  # fmt: skip
"""Words of names and the form of files that they say, which vLLM, SGLang, llama.cpp and exo-engine do not load."""


def _words(name: str) -> list[str]:
    return re.split(r"[-_.\s]", name.rpartition("/")[2].lower())


def why_no_name(name: str) -> tuple[str, str] | None:
    """Return why no model has this name, and what to do; None where one may."""
    step = "Write the name as the Hub does, ORGANISATION/NAME."
    if len(name) > _MOST_LETTERS:
        most = f"{_MOST_LETTERS} is the most: {name[:40]!r}…"
        return f"a model has no name of {len(name):,} letters, {most}", step
    if not name.isprintable():
        return (
            f"the model {name!r} is not in the bundled catalogue: a name has no control characters",
            step,
        )
    form = next((_FORMS[word] for word in _words(name) if word in _FORMS), None)
    if form is not None or name.lower().endswith("-ov"):
        form = form or _FORMS["openvino"]  # `-ov-` is also OneVision
        said = f"the model {name!r} is not in the bundled catalogue: by its name it is in {form}"
        return f"{said}, a form that no engine here loads", "Name the files in safetensors or GGUF."
    if name.count("/") > 1 or name.startswith("/"):
        said = f"the model {name!r} is not in the bundled catalogue: a name of the Hub is no address and no path"
        return said, f"Name it {'/'.join(name.strip('/').split('/')[-2:])}."
    repository, colon, mix = name.partition(":")
    if not colon:
        return None
    if repository and type_of_tag(mix) is not None and "gguf" not in repository.lower():
        said = f"the model {name!r} is not in the bundled catalogue: by its name {repository} has no GGUF files"
        return said, f"Name a repository of them, such as {repository}-GGUF:{mix}."
    if repository and mix:
        said = f"the model {name!r} is not in the bundled catalogue: {mix!r} is no type of GGUF files whose size is known"
        return said, f"Types are those of llama.cpp, such as {repository}:Q4_K_M."
    return f"the model {name!r} is not in the bundled catalogue: a name of the Hub has no ':'", step


def type_of_tag(tag: str) -> str | None:
    """Return the type of GGUF files that is meant behind a name's colon; None: none whose size is known."""
    is_other = "/" in tag or re.search(
        r"(^|[-_.])ud[-_.]", tag.lower()
    )  # mixes by rules of their own
    return None if is_other else gguf_type_of(f"{tag}.gguf")


def typed_name(name: str) -> str | None:
    """Return a name with the type of a GGUF file behind a colon (`ORG/NAME-GGUF:Q4_K_M`) as one that has it within; None of others."""
    repository, _, tag = name.partition(":")
    mix = type_of_tag(tag)
    if "gguf" not in repository.lower() or mix is None:
        return None
    bare = re.sub(r"[-_.]gguf$", "", repository, flags=re.IGNORECASE)
    return f"{bare}-{mix}-GGUF"


@dataclass(frozen=True, slots=True)
class NameWords:
    """A short name in small letters, taken apart.

    Attributes:
        rest: the name without what it says of a quantization.
        method: as `quantization_named` takes it, `PLAIN`, `FULL`, or empty where the name says nothing.
        unsized: a word for a quantization whose size the name does not tell; empty: none.
    """

    rest: str
    method: str
    unsized: str


@lru_cache(maxsize=1024)  # names are anybody's
def read_words(short: str) -> NameWords:
    """Take a name without its organisation apart."""
    rest, method = short, ""
    alone = _ALONE.search(short)
    for pattern, said in _METHODS:
        match = re.search(f"(?:{pattern}){_END}", rest)
        if match is not None:
            method = method or _method_said(said, match, short)
            rest = re.sub(f"(?:{pattern}){_END}", "", rest)
    plain = _TYPE_WORD.search(rest)
    if plain is not None:
        rest = rest[: plain.start()] + rest[plain.end() :]
        method = method or (FULL if plain["bits"] == "32" else PLAIN)
    unsized = _UNSIZED.search(rest)
    if unsized is not None and method not in UNQUANTIZED:
        rest = rest[: unsized.start()] + rest[unsized.end() :]
        word = unsized[1]
        return NameWords(
            rest, method, f"{word} in another form" if word in _USUALLY_4_BIT else word
        )
    return NameWords(rest, method, alone[1] if alone is not None and not method else "")


def _method_said(said: str, match: re.Match[str], short: str) -> str:
    if said == "gguf":
        return _MIXES[match[1]]
    if said != _OF_GGUF:
        return said
    return next((mix for word, mix in _USUAL_TYPES.items() if re.search(word, short)), "Q4_K_M")


def strip_quantization(short: str) -> str:
    """Return a short name in small letters without any word of a quantization, for comparing."""
    for pattern, _ in _METHODS:
        short = re.sub(f"(?:{pattern}){_END}", "", short)
    return short


_OTHER_SIZE = re.compile(r"a?\d+(\.\d+)?b|\d+x\d+(\.\d+)?[bm]")
_OTHER_KIND = frozenset({"moe", "audio", "omni", "speech", "tts", "asr", "diffusion"})
_SEES = frozenset({"vision", "vl", "vlm", "image", "video", "ocr", "multimodal"})
_VARIANTS = ("instruct", "thinking", "reasoning")
_OF_THE_OWNER = re.compile(
    r"instruct|it|chat|base|pt|hf|thinking|reasoning|preview|sft|rl|dpo|zero|v?\d+(\.\d+)*|\d{4,8}"
)


def why_no_fine_tune(extra: list[str], *, sees: bool, is_own: bool) -> str:
    """Return why a name with these words beside a model's is no fine-tune of it; empty: it may be one.

    Args:
        extra: the words.
        sees: the model reads images.
        is_own: the name has the owner of the model, or none: its variants are bundled under their names.
    """
    for word in extra:
        if _OTHER_SIZE.fullmatch(word):
            return f"{word!r} says another size"
        if word in _OTHER_KIND or (word in _SEES and not sees):
            return f"{word!r} says another kind of model"
        meant = next((each for each in _VARIANTS if 0 < distance(word, each) <= 2), None)
        if meant is not None:
            return f"{word!r} is nearly {meant!r}"
        if is_own and not _OF_THE_OWNER.fullmatch(word):
            return f"{word!r} names none of the owner's models that are known"
    return ""


KEPT = "which keeps the config"
"""What a fine-tune is taken for whose name says no other context."""

_CONTEXT = re.compile(r"(\d{1,4})(k)|(\d{1,2})(m)")


def other_context(extra: list[str], own: int | None) -> tuple[str, int]:
    """Return the word that may say another context than the model's own, and the most of both; an empty one: none does.

    Args:
        extra: the words beside a model's name.
        own: tokens that the model's config allows.
    """
    for word in extra:
        match = _CONTEXT.fullmatch(word)
        if match is None:
            continue
        count, power = int(match[1] or match[3]), 1 if match[2] else 2
        if own not in (count * 1024**power, count * 1000**power):
            return word, max(count * 1024**power, own or 0)
    return "", 0


def distance(one: str, other: str) -> int:
    """Return how many letters are wrong, missing, too many or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        last, before, row = before, row, [i + 1]
        for j, wanted in enumerate(other):
            cost = min(before[j + 1] + 1, row[j] + 1, before[j] + (letter != wanted))
            if i and j and letter == other[j - 1] and one[i - 1] == wanted:
                cost = min(cost, last[j - 1] + 1)
            row.append(cost)
    return row[-1]


def is_slip(one: str, other: str) -> bool:
    """Whether a word is another with a letter or two wrong; short ones have to be equal."""
    shorter = min(len(one), len(other))
    return distance(one, other) <= (0 if shorter < 4 else 1 if shorter < 8 else 2)


def has_same_kind(name: str, other: str) -> bool:
    """Whether two short names begin with the same word, or one has that of the other, but for a slip."""
    words = re.findall(r"[a-z]+", name.lower()), re.findall(r"[a-z]+", other.lower())
    if not words[0] or not words[1]:
        return False
    return any(is_slip(words[0][0], each) for each in words[1]) or any(
        is_slip(words[1][0], each) for each in words[0]
    )


def nearest_names(name: str, known: Mapping[str, str]) -> list[str]:
    """Return up to three known names like this one: an organisation, and how letters are written, may be wrong.

    Args:
        name: the name that is not known.
        known: names by their small letters, with the organisation and without.
    """
    short = name.strip().lower().rpartition("/")[2]
    parts = re.findall(r"[a-z]+|[^a-z]+", short)
    spelled = r"[-_.]?".join(re.escape(part.strip("-_.")) for part in parts)
    whole = re.compile(rf"(?:^|[-_.]){spelled}(?:[-_.]|$)")
    within = [each for each in known if "/" not in each and len(short) > 4 and whole.search(each)]
    near = sorted(within, key=lambda each: (_is_by_another(known[each], parts[0]), len(each)))[:3]
    near += get_close_matches(name.strip().lower(), known, n=3, cutoff=0.75)
    near += get_close_matches(short, known, n=3, cutoff=0.6)
    meant = dict.fromkeys(known[each] for each in near)
    return [each for each in meant if has_same_kind(short, each.rpartition("/")[2])][:3]


def _is_by_another(known: str, word: str) -> bool:
    """Whether the owner of a model is not called by the word that names begin with (`meta-llama`, `Qwen`)."""
    return word not in known.lower().partition("/")[0]


_SIZE_TAG = re.compile(r"(?P<model>[^:]+):(?P<size>\d+(\.\d+)?b)\b[^/]*", re.IGNORECASE)


def sized_name(name: str) -> str | None:
    """Return a name with its size behind a colon, as Ollama has them (`qwen3:8b`), as the Hub does; None of others."""
    match = _SIZE_TAG.fullmatch(name.strip())
    return None if match is None else f"{match['model']}-{match['size']}"
