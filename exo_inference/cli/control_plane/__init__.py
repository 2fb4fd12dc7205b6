"""The control plane of this machine as processes: `up`, `down`, `status`, `serve`.

None of these imports a server; they start, find and signal processes, and read the files that
`exo_inference.state_dir` and `exo_inference.local_settings` describe.
"""
