"""The model repository: which versions are served; load, poll and unload."""
