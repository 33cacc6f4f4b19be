"""torch to ONNX: export a block, prove it against the float64 reference, write it into the model repository."""

import os

# ONNX Runtime opens a telemetry store in the user's cache folder when it is imported, unless this is set before.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
