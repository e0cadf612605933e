"""A graph as a native step program, and the model that runs it."""
