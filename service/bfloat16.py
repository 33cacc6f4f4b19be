"""bfloat16, which numpy does not have: two bytes a number, handed to ONNX Runtime and taken from it as they are."""

import numpy as np

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # a record, so that it is told from uint16
ELEMENT = 16  # TensorProto.BFLOAT16
