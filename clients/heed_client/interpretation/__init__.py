"""Sweeps of interventions, and what each layer predicts."""
