"""The native API: /v1/attention lists, describes and runs the blocks."""
