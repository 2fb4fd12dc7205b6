"""Engines that set a fixed share of each GPU aside for weights and cache, instead of measuring what a step takes."""
