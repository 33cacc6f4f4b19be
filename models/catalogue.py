"""All built-in blocks by name."""

from models import (
    additive,
    cosine,
    cross_decoder,
    dot_product,
    efficient,
    encoder,
    kernel,
    linear,
    luong,
    multi_head,
    multiplicative,
    projected,
    scaled_dot_product,
)
from models.block import Block

BLOCKS: dict[str, Block] = {
    block.name: block
    for block in (
        dot_product.BLOCK,
        scaled_dot_product.BLOCK,
        projected.PROJECTED,
        projected.SELF_ATTENTION,
        projected.CROSS_ATTENTION,
        multi_head.BLOCK,
        multi_head.SELF,
        multi_head.GROUPED,
        multi_head.MULTI_QUERY,
        additive.BLOCK,
        luong.DOT,
        luong.GENERAL,
        additive.LUONG_CONCAT,
        cosine.BLOCK,
        kernel.BLOCK,
        linear.BLOCK,
        efficient.BLOCK,
        multiplicative.BLOCK,
        encoder.ENCODER,
        encoder.DECODER,
        cross_decoder.BLOCK,
    )
}


def find(name: str) -> Block:
    """The block called ``name``.

    Raises:
        ValueError: there is no such block; the message lists all.
    """
    if name not in BLOCKS:
        raise ValueError(f"unknown block {name!r}; there are {', '.join(BLOCKS)}")
    return BLOCKS[name]
