"""The engine in-process, with text and with token ids."""

from __future__ import annotations

import shutil
import subprocess
import sys

import exo_engine
import pytest
import tokenizers
from exo_engine import LLM, SamplingParams
from exo_engine.errors import ConfigurationError, ModelUnusable

OPTIONS = {"dtype": "float32", "device": "cpu", "max_model_len": 64}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def model_with_words(tiny_model, tmp_path):
    """A tiny model whose tokens are the words w0 to w100."""
    path = shutil.copytree(tiny_model("llama").path, tmp_path / "model")
    words = {f"w{index}": index for index in range(101)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(path / "tokenizer.json"))
    return path


def test_text_goes_through_the_models_tokenizer(tiny_model, model_with_words):
    expected = tiny_model("llama").greedy((5, 17, 80), 6)
    (completion,) = LLM(model_with_words, **OPTIONS).generate("w5 w17 w80", GREEDY)
    assert completion.prompt_token_ids == (5, 17, 80)
    assert completion.token_ids == expected
    assert completion.text == " ".join(f"w{token_id}" for token_id in expected)


def test_text_and_token_ids_can_be_mixed(model_with_words):
    text, ids = LLM(model_with_words, **OPTIONS).generate(["w5 w17 w80", [5, 17, 80]], GREEDY)
    assert text.token_ids == ids.token_ids
    assert ids.text is None


def test_one_prompt_of_token_ids_needs_no_list_around_it(tiny_model):
    llm = LLM(tiny_model("llama").path, **OPTIONS)
    (bare,), (listed,) = llm.generate([5, 17, 80], GREEDY), llm.generate([[5, 17, 80]], GREEDY)
    assert bare.token_ids == listed.token_ids
    assert llm.generate([], GREEDY) == []


def test_text_without_a_tokenizer_is_refused_with_the_file(tiny_model):
    with pytest.raises(ModelUnusable, match=r"tokenizer\.json"):
        LLM(tiny_model("llama").path, **OPTIONS).generate("hello", GREEDY)


def test_parameters_are_for_all_prompts_or_one_for_each(tiny_model):
    llm = LLM(tiny_model("llama").path, **OPTIONS)
    one, six = llm.generate([[1], [2]], [SamplingParams(max_tokens=1), GREEDY])
    assert (len(one.token_ids), len(six.token_ids)) == (1, 6)
    with pytest.raises(ConfigurationError, match="got 2 prompts and 1 sampling parameters"):
        llm.generate([[1], [2]], [GREEDY])


def test_public_names_are_these_and_import_no_torch():
    assert exo_engine.__all__ == ["LLM", "Completion", "SamplingParams", "__version__"]
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = exo_engine.Nothing
    code = "import sys, exo_engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_text_needs_no_jinja():
    """Templates do; where Jinja is missing, prompts that are text still become tokens."""
    code = "import sys; sys.modules['jinja2'] = None; from exo_engine.tokenizer import Tokenizer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
