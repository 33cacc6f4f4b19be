"""Servers to compare with: two workers each, no access log, ONNX Runtime with one thread."""
