"""Towers for pictures of any size, whose patches are one sequence, called with pictures of one size."""
