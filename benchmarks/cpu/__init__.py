"""exo-engine beside others on this machine's processor: `make bench-cpu`.

`__main__` reads the options and takes measurements in turns; `contestants` says who takes part and how each is
started; `llama_cpp` builds one of them; `offline` and `http_load` measure; `quiet` judges whether the machine was left alone;
`limits` says what it could give at most; `report` and `page` reduce the figures and write docs/benchmarks/cpu.md.
"""
