"""Requests a second of Heed, of baselines and of other servers, measured alternately in one run."""
