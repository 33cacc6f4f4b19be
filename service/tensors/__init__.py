"""Tensors: datatypes, symbolic dimensions, casts and masks."""
