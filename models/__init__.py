"""The mathematics: attention blocks in torch, one idea per file, and the float64 reference they answer to."""
