"""ONNX Runtime: providers, sessions, and memory that its runs read and write in place."""
