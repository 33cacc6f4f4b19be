"""The commands ``heed serve``, ``heed list`` and ``heed probe``."""
