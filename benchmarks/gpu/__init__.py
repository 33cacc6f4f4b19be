"""All measurements on a GPU in one command: numeric checks, time compared with torch, throughput."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported
