"""Measure a level of load: windows, the server's own metrics, results, thresholds."""
