"""Servers to measure beside: two workers each, no access log, ONNX Runtime with one thread."""
