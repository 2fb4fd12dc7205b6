"""The one reader of argument vectors: the flags of a release as data, split, read, judged and worded. Pure.

`reader.read_vector` is the way in; each engine calls it with its `Dialect` and the flags of its release.
"""
