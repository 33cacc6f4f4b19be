"""Interventions: a request changes activations of a transformers model, and gets the answer of the changed run."""
