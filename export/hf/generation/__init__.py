"""The graphs by which a model of transformers generates tokens: ``decode.onnx``, and ``encoder.onnx`` of two stacks."""
