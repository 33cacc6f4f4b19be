"""Inference by the Open Inference Protocol: decode, run, encode."""
