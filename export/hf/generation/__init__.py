"""The graphs with which a transformers model generates: ``decode.onnx``, and with two stacks also ``encoder.onnx``."""
