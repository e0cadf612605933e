"""Models as descriptions: one small file per family, one function that builds the graph."""
