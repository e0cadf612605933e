"""Side-by-side measurements of this engine and other engines on the same machine and weights."""
