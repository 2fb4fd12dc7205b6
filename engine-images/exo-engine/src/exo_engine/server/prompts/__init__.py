"""Prompts as tokens: tokenizing what clients send, cutting it, and putting it around a gap."""
