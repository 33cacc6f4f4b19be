"""The part of a block's attention that is answered: selections, reductions, derived outputs, and their types."""
