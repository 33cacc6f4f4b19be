"""The Open Inference Protocol, V2, with Triton's extensions, for every model in the repository."""
