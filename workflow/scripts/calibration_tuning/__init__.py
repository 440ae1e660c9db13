"""Teach language models to sample from the distribution they are asked for."""

__version__ = "0.1.0"
