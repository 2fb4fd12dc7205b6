"""The entrypoint of every engine image: `engine-images/README.md` says what it promises.

Python's standard library only, from 3.10 on, because it runs with whatever Python an upstream image
has. `settings` reads what the container got, `engines` knows each engine's command line and metrics,
`watcher` looks at the engine, `probes` answers the kubelet, `__main__` runs it all.
"""
