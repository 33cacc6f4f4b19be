"""Graphs whose activations a request may change."""
