"""torch to ONNX: export a block, verify it against the float64 reference, write it to the model repository."""

import os

# Without this, ONNX Runtime creates a telemetry store in the user's cache folder when it is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
