"""How each engine's own parser reads an argument vector, as data.

`argument_vector.py` splits by it, `values.py` reads values by it, `reader.py` words refusals by it. What
is said of single flags (several values, suffixes, a `--no-` form) is in their catalogues.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a parser takes. The defaults are those that most engines share.

    Attributes:
        underscores: `_` stands for `-` in the names of flags.
        attached: `--flag=value` is read, not only two items.
        boolean_words: `--flag=false` is read, in one item.
        takes_word_after: a word after a boolean is read as meant for it, and refused.
        dashes: whatever begins with `-` and is no number is a flag, known or not.
        keys: `--flag.key=value` sets one key of a JSON object.
        strips: blanks around numbers are left out.
        none_words: an empty value and `None` mean that the flag was not given.
        json_objects: JSON is an object, or an array where the default is one; else it is any JSON.
        iec_suffixes: large integers end in k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (of 1024).
        has_releases: flags came and went with releases, and refusals say so.
    """

    underscores: bool = False
    attached: bool = True
    boolean_words: bool = False
    takes_word_after: bool = False
    dashes: bool = False
    keys: bool = False
    strips: bool = False
    none_words: bool = False
    json_objects: bool = False
    iec_suffixes: bool = False
    has_releases: bool = False


VLLM = Dialect(
    underscores=True,
    takes_word_after=True,
    dashes=True,
    keys=True,
    strips=True,
    none_words=True,
    json_objects=True,
    has_releases=True,
)
"""Python's argparse, made wider by vLLM's own `FlexibleArgumentParser`."""

EXO = Dialect(underscores=True, boolean_words=True, dashes=True, json_objects=True)
"""Python's argparse; a test runs exo-engine's own parser beside this."""

PLAIN = Dialect()
"""Text Generation Inference (clap) and TensorRT-LLM (click): `_` is not `-`."""

SGLANG = Dialect(iec_suffixes=True)
"""Python's argparse: `_` is not `-`."""

LLAMA_CPP = Dialect(underscores=True, attached=False)
"""A parser of its own: flags and values are two items, `_` is `-`."""
