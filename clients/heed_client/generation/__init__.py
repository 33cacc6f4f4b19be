"""Tokens that a model generates, as they come or all at once."""
