"""Sweeps of interventions, and the predictions of each layer."""
