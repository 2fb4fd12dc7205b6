"""The two processes of the engine and what they say to each other.

`main` is the API process: HTTP, tokenizer, text. It starts `core_process`, which owns the model and
imports torch. They talk in `frames` over a socket pair. The API process never imports torch, so
that it answers /health within a second of its start. What HTTP clients ask is in `routes`; what runs
in processes of its own, with limits, in `pools`.
"""
