"""The routes that compute, one file each, and what they share of reading requests and writing answers.

`app.py` serves them. They call the `service`; nothing below knows them.
"""
