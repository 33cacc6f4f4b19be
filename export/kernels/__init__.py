"""Fast paths: the kernels that compute attention without weights, as ONNX functions, and the graphs that use them."""
