"""One thread of torch for each of the tests' processes: more would wait for the CPUs of the others."""

import torch

torch.set_num_threads(1)
