r"""Gaussian kernel attention: :math:`\sum_j K(q,k_j)v_j / \sum_l K(q,k_l)`, :math:`K(q,k)=e^{-\|q-k\|^2/2\sigma^2}`.

Attention as a kernel machine over stored key-value pairs: Nadaraya, "On Estimating Regression", 1964; Watson, "Smooth
Regression Analysis", 1964; as attention in Tsai et al., "Transformer Dissection", 2019, https://arxiv.org/abs/1908.11775.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models import reference
from models.attention import AttentionOutputs, masked_softmax
from models.block import Block, Input, Output
from models.cosine import INPUTS, OUTPUT
from models.options import attention_outputs, masks
from models.precision import cast_to, upcast


class Kernel(nn.Module):
    """query [batch, heads, m, d_k], key [batch, heads, n, d_k], value [batch, heads, n, d_v]; no weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bandwidth: Tensor | float = 1.0,
        normalize: Tensor | bool = True,
        **options: Any,
    ) -> AttentionOutputs:
        # |q - k|^2 multiplied out needs no tensor [m, n, d_k]. In float64, since digits cancel where keys are near.
        q, k = query.double(), key.double()
        halves = q.square().sum(-1, keepdim=True) / 2 + k.square().sum(-1).unsqueeze(-2) / 2
        variance = torch.as_tensor(bandwidth).double().square()
        scores = ((q @ k.transpose(-1, -2) - halves) / variance).to(upcast(query).dtype)
        attended = masked_softmax(
            scores, upcast(value), **options
        )  # even the largest score may be out of float16's range
        if isinstance(normalize, Tensor) or not normalize:  # exp(lse) is the sum of K, by which weights were divided
            assert attended.lse is not None
            total = torch.where(torch.as_tensor(normalize), 1.0, attended.lse.double().exp())
            total = total[..., None].to(scores.dtype)
            attended = attended._replace(output=attended.output * total, weights=attended.weights * total)
        outputs = {name: x for name, x in attended._asdict().items() if x is not None}
        return attended._replace(**{name: cast_to(x, value.dtype) for name, x in outputs.items()})


BLOCK = Block(
    name="kernel",
    title="Gaussian kernel attention",
    formula=r"\sum_j \frac{K(q,k_j)}{\sum_l K(q,k_l)}\,v_j,\quad K(q,k)=\exp\left(-\frac{\|q-k\|^2}{2\sigma^2}\right)",
    source="Tsai et al., Transformer Dissection, 2019, https://arxiv.org/abs/1908.11775; Nadaraya and Watson, 1964",
    description="A kernel machine: values are weighted by how close their key is to the query.",
    build=Kernel,
    reference=lambda _module, inputs, dtype: reference.kernel(**inputs, dtype=dtype),
    inputs={
        **INPUTS,
        "bandwidth": Input((), "sigma, the standard deviation of the Gaussian kernel.", default=1.0, minimum=1e-6),
        "normalize": Input(
            (), "Divide by the sum of K; without, weights are K itself, at most 1.", dtype="bool", default=True
        ),
        **masks("heads"),
    },
    outputs=attention_outputs(OUTPUT, "heads")
    | {
        "scores": Output(
            ("batch", "heads", "m", "n"),
            "log K = -|q - k|^2 / (2 sigma^2), masks applied; -inf (null in JSON) where attending is forbidden.",
        ),
        "lse": Output(
            ("batch", "heads", "m"),
            "The log of the sum of exp(scores) of each row, which is the sum of K, by which attention over parts of "
            "the keys is merged; -inf (null in JSON) where all keys are masked.",
        ),
        "weights": Output(
            ("batch", "heads", "m", "n"),
            "K, divided by the sum of its row unless normalize is false; a row is all zero where all keys are masked.",
        ),
    },
    rare=("normalize",),
    pair_numbers=5,  # of distances, in float64
)
