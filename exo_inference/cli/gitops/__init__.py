"""`apply`, `diff` and `export`: the objects of a zone as files, and files as the objects of a zone.

`changes.py` decides (pure), `live.py` reads what exists, `execution.py` makes the changes; each verb has
a file of its own, and `commands.py` is where the command tree finds them.
"""
