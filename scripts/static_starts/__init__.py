"""Calibration and grading with starts of engines that have a static share of memory."""
