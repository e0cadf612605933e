"""Models: descriptions, checkpoint readers, packing, and what executes them."""
