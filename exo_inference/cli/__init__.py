"""The command line, `exo` (and `exo-inference`, the same program).

`main.py` is the entry point and the one place where errors become text and exit codes. `tree.py` gives
every command its help, its aliases and the global flags; each verb is a file of its own in the folder of
its noun, such as `model/`, `deployment/` and `control_plane/`. Commands talk to the API through
`exo_inference.sdk` alone and never import a server. Modules here import only click and the standard library
when they are loaded; pydantic, httpx and rich are imported by the code that needs them, so that help and
completion stay quick.
"""
