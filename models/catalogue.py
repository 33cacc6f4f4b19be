"""Every built-in block, by the name it has everywhere."""

from models import dot_product, multi_head, scaled_dot_product
from models.block import Block

BLOCKS: dict[str, Block] = {
    block.name: block for block in (dot_product.BLOCK, scaled_dot_product.BLOCK, multi_head.BLOCK)
}


def find(name: str) -> Block:
    """The block called ``name``.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in BLOCKS:
        raise ValueError(f"unknown block {name!r}; there are {', '.join(BLOCKS)}")
    return BLOCKS[name]
