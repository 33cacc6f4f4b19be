"""Numbers and times on a GPU, in one command. This repository's CI has no GPU: it tries the command on the CPU."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported
