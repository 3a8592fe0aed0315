"""Oxide Infer's kernels, and the builder that makes an artifact (cubin and manifest) of each.

`families/` holds the kernels, `schedules/*.toml` their tile sizes, `profiles/*.toml` what is built and which schedule
serves which shapes. `python -m oxide_tile build` writes the artifacts.
"""
