"""Answers that keep to a grammar: what is asked for, compiled grammars, and each step's masks."""
