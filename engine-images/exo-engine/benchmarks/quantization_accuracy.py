"""How far --quantization takes a model from its plain weights, on text that the plain model wrote.

The plain model samples at temperature 1; then both score every token of that, with all before it given.
Figures go to stdout as JSON: perplexity of each, the mean difference of a token's log-probability, and how
often the likeliest token is the same.

    python benchmarks/quantization_accuracy.py --model ../../exo_inference/hub/builtin_models/tiny-chat
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from exo_engine import LLM, SamplingParams
from exo_engine.weight_formats.int4 import Int4
from exo_engine.weight_formats.int8 import Int8

PROMPTS = (
    "Hello, who are you?",
    "Tell me a short story about a small dog.",
    "What is the capital of France?",
    "Once upon a time there was",
    "List three things that one finds in a kitchen.",
    "Why is the sky blue?",
    "My favourite day of the week is",
    "How do I make tea?",
)


def main() -> int:
    """Write text, score it twice, print the differences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--quantization", default="int8", help="none: compare number types alone")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--to-dtype", help="of the second model (the first one's)")
    parser.add_argument(
        "--plain-head",
        action="store_true",
        help="keep the output head as it is where it would be in INT8",
    )
    parser.add_argument("--samples", type=int, default=8, help="texts per prompt")
    parser.add_argument("--max-tokens", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.plain_head:
        Int8.has_int8_head = Int4.has_int8_head = False
    options = {"dtype": arguments.dtype, "device": "cpu", "enable_prefix_caching": False}
    plain = LLM(arguments.model, **options)
    prompts = [prompt for prompt in PROMPTS for _ in range(arguments.samples)]
    params = [
        SamplingParams(temperature=1.0, max_tokens=arguments.max_tokens, seed=seed, ignore_eos=True)
        for seed in range(len(prompts))
    ]
    texts = [done.prompt_token_ids + done.token_ids for done in plain.generate(prompts, params)]
    quantization = None if arguments.quantization == "none" else arguments.quantization
    options["dtype"] = arguments.to_dtype or arguments.dtype
    quantized = LLM(arguments.model, quantization=quantization, **options)
    pairs = [
        (a, b)
        for text in texts
        for a, b in zip(_score(plain, text), _score(quantized, text), strict=True)
    ]
    print(
        json.dumps(
            {
                "model": arguments.model.name,
                "quantization": arguments.quantization,
                "dtype": arguments.dtype,
                "to_dtype": options["dtype"],
                "tokens": len(pairs),
                "weights_bytes": [
                    each.core.measurements.weights_bytes for each in (plain, quantized)
                ],
                "perplexity": [
                    round(math.exp(-statistics.mean(pair[side][0] for pair in pairs)), 4)
                    for side in range(2)
                ],
                "mean_logprob_difference": round(
                    statistics.mean(abs(a[0] - b[0]) for a, b in pairs), 5
                ),
                "same_likeliest_token": round(statistics.mean(a[1] == b[1] for a, b in pairs), 4),
            },
            indent=2,
        )
    )
    return 0


def _score(llm: LLM, text: tuple[int, ...]) -> list[tuple[float, int]]:
    """Return each token's log-probability, and the likeliest token in its place."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
    (done,) = llm.generate([text], params)
    assert done.prompt_logprobs is not None, "they were asked for"
    return [(each.logprob, each.top[0][0]) for each in done.prompt_logprobs if each is not None]


if __name__ == "__main__":
    sys.exit(main())
