"""The controller: admits what users want, stores it, makes the world match, and reports.

`python -m exo_inference.controller` runs it. It is not on the request path of inference: while it
is down, gateway and engines go on with the last routing table.
"""
