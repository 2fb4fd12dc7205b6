"""Child processes in which what strangers wrote runs: chat templates and tokenizers.

`process_pool` owns the processes; their own side is in `exo_engine.tokenizer`.
"""
