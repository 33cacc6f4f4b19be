"""Compare graphs in ONNX Runtime with the float64 reference."""
