"""Checks and times the committed artifacts on a GPU, by their manifests alone: `gpu_check.py` runs it.

Needs PyTorch for references, and none of the builder. Every launch goes through the driver's C interface with arguments
taken from the manifest, as the Rust runtime makes it.
"""
