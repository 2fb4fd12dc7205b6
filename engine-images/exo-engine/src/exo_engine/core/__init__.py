"""The engine core: requests in, tokens out, one step at a time.

`request`, `block_manager` and `scheduler` import no torch; `engine` and `runner` do.
"""
