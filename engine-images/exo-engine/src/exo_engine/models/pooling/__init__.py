"""Models that embed or score: from their files to a `PoolingSpec`, and from token ids to vectors.

`spec`, `config_file` and one file per family of encoders (`bert`) import no torch; `encoder` and `model` compute.
"""
