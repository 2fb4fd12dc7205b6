"""Completion in a shell: the script it loads, and the names it asks for."""
