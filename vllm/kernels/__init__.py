"""Compiled kernels and their readable references. `ops` is the only door to them."""
