"""torch to ONNX: export a block, prove it against the float64 reference, write it into the model repository."""
