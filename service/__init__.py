"""The HTTP service: load the model repository, decode, run, encode. It imports neither torch nor the blocks' code."""

import os

# Must be set before onnxruntime is imported: it would open a telemetry store in the user's cache folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# Before numpy is imported: a huge page takes 5 to 20 ms to be cleared, in which no request is answered.
os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
