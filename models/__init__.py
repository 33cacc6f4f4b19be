"""The mathematics: attention blocks in torch, a file for each kind, and the float64 reference in numpy."""
