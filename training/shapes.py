"""The shapes of the two models, and the files of a model folder that do not depend on training.

Used by `train.py`. The configuration is written in the classic form (`rope_theta`, `torch_dtype`)
that every engine reads; weights come from `export.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

VOCAB_SIZE = 3072
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT_ID, START_ID, END_ID = 0, 1, 2
MAX_POSITIONS = 2048

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of one Llama model with tied embeddings and grouped-query attention."""

    name: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int

    def config(self) -> dict[str, object]:
        """Render `config.json`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCAB_SIZE,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": END_ID,
            "pad_token_id": END_OF_TEXT_ID,
            "use_cache": True,
            "torch_dtype": "bfloat16",
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny-chat", 192, 6, 6, 2, 32, 512),
        Shape("tiny-draft", 96, 2, 3, 1, 32, 256),
    )
}

GENERATION_CONFIG = {
    "do_sample": False,
    "eos_token_id": [END_ID, END_OF_TEXT_ID],
    "pad_token_id": END_OF_TEXT_ID,
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": MAX_POSITIONS,
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>"],
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,
}
