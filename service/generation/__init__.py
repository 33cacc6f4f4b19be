"""Generates tokens with models of transformers, and answers where each token looked."""
