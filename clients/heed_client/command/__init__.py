"""The commands ``heed run`` and ``heed memory``: flags, files of tensors, heat maps."""
