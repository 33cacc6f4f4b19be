"""Everything that needs a GPU, measured on one by one command: the numbers, the time beside torch's, the throughput."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported
