"""Which part of a block's attention is answered: selections, reductions, derived outputs, and their types."""
