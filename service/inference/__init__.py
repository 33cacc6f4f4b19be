"""The pipeline of an inference request, which both APIs share: decode, run, encode."""
