"""Model families: from config.json to a decoder, and from safetensors to its weights.

`spec`, `config_file` and one file per family (`llama`, `mistral`, `qwen2`, `qwen3`) read
configurations and import no torch, so that the API process can use them; `decoder` computes, written
over `exo_engine.layers`, and `weights` fills its layers. Models that embed or score are in `pooling`.
"""
