"""Calibration and grading with starts of llama.cpp."""
