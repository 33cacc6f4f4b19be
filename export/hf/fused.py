"""Attention without weights, for the graph that serves requests which do not ask for them.

transformers' attention functions are chosen by name. This one is torch's scaled_dot_product_attention with the masks
of eager attention, so that a query that may attend to nothing gives the same numbers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask

NAME = "heed"


@contextmanager
def fused(model: PreTrainedModel) -> Iterator[bool]:
    """A context in which ``model`` computes attention without its weights; False where it cannot."""
    AttentionInterface.register(NAME, sdpa_attention_forward)
    AttentionMaskInterface.register(NAME, eager_mask)
    try:
        model.set_attn_implementation(NAME)
        possible = True
    except (ValueError, KeyError, NotImplementedError):
        possible = False
    try:
        yield possible
    finally:
        model.set_attn_implementation("eager")
