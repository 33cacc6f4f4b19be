"""HTTP: load the model repository, decode, run, encode. Needs neither torch nor the blocks that were exported."""

import os

# ONNX Runtime opens a telemetry store in the user's cache folder when it is imported, unless this is set before.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
