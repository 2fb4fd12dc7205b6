"""Takes an answer's text apart, as it grows: what the model thought, what it said, and which tools it calls.

One machine per format of the models' templates, one file each; `formats.py` has the table and chooses. A
machine takes text in pieces of any size, and what it yields does not depend on how the text was cut: an answer
that is not streamed is the same machine fed once. Text of a model is a stranger's: whatever it is, it comes out
as content if it is no call. Knows nothing of HTTP.
"""
