"""Encoders of images and speech before a text model, by what they are made of; `vision.py` and `audio.py` choose."""
