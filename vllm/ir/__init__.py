"""What a model computes: ops over named buffers, passes over them, and what each op means."""
