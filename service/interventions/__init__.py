"""Interventions: a request changes activations of a model of transformers, and gets the answer of the changed run."""
