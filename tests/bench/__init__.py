"""Side-by-side figures: Weir and plain nginx before the same engine, in the same run."""
