"""A block's module as ONNX graphs: traced, decomposed, cut into parts, with shared weights."""
