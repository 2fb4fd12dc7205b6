"""Plans on the command line: who makes them, and how they are shown.

`deployment plan`, `create`, `update` and `apply` use it; the plans themselves are
`exo_inference.preflight`'s, here or on the control plane. Imported by none of the commands before
they run, since planner and rich take their time.
"""
