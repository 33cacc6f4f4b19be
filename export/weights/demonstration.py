"""Make a block of the user's own sizes without a checkpoint: its weights are random, drawn from a seed.

They are drawn as those of the built-in blocks are: the same configuration and seed give the same weights.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, replace
from dataclasses import fields as fields_of
from typing import Any, get_type_hints

import torch

from export.weights.family import FAMILIES, Family, agreed, parsed
from export.weights.memory import GIB, machine_bytes
from models.block import Block, size
from models.catalogue import find
from models.examples import SIZES, within
from models.learned import LARGE, demonstration, weighted

# Besides the fields without a default. Without num_kv_heads, the block would have as many key heads as query heads.
REQUIRED = {"grouped_query": ("num_kv_heads",)}
BYTES_PER_WEIGHT = 32  # of memory during an export: several float32 copies, and the float64 reference
BYTES_PER_ELEMENT = 64  # of an example's inputs and outputs


@dataclass(frozen=True)
class Demonstration:
    """A block with demonstration weights, and an estimate of the memory that its export needs."""

    block: Block
    memory_bytes: int


def with_seed(kind: str, name: str, settings: Mapping[str, str], seed: int) -> Demonstration:
    """A block ``name`` of the kind ``kind`` with the user's ``settings``, and weights drawn from ``seed``.

    Sizes are those of ``settings``, or the defaults of the block's configuration. Other fields without a setting are
    as in the built-in block, such as bias and norm.

    Raises:
        ValueError: the block takes no settings, or its export needs more memory than the machine has.
        CheckpointError: a setting is unknown, not of its type, or contradicts the block.
    """
    builtin = find(kind)
    if kind not in FAMILIES:
        raise ValueError(f"{kind} has no sizes to --set; these blocks have: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    given = parsed(get_type_hints(family.config), settings)
    config = _config(kind, family, given, builtin.config)
    weights = _count(family, config)
    memory = BYTES_PER_WEIGHT * weights
    # Checked before the block is made, too, as its description grows with the number of layers.
    _require_memory(kind, config, weights, memory)
    block = family.make(config, name=name)
    memory += BYTES_PER_ELEMENT * _example_elements(block, large=weights > LARGE)
    _require_memory(kind, config, weights, memory)
    build = weighted(lambda: family.module(config), None, seed)
    return Demonstration(replace(block, build=build, weights=demonstration(seed)), memory)


def _config(kind: str, family: Family, given: Mapping[str, Any], builtin: Mapping[str, Any]) -> Any:
    """The configuration with the ``given`` fields."""
    fields = agreed({"--set": dict(given), f"the block {kind}": family.fixed})
    required = [field.name for field in fields_of(family.config) if field.default is MISSING]
    required += REQUIRED.get(kind, ())
    missing = [name for name in required if name not in fields]
    if missing:
        settings = " ".join(f"--set {name}=..." for name in missing)
        raise ValueError(f"{kind} without --weights needs {', '.join(missing)}; say {settings}")
    for name, value in fields.items():
        least = 1 if name in required else 0
        if type(value) is int and value < least:
            raise ValueError(f"{kind}: {name} must be at least {least}, got {value}")
    conventions = {name: value for name, value in builtin.items() if isinstance(value, bool | str)}
    if not fields.get("vocab_size"):
        conventions.pop("embedding_norm", None)
    try:
        return family.config(**conventions | fields)
    except ValueError as error:
        raise ValueError(f"{kind}: {error}") from None


def _count(family: Family, config: Any) -> int:
    """The number of weights, without allocating them. Of a stack, only one and two layers are counted.

    Raises:
        ValueError: a tensor has more elements than torch can count.
    """
    try:
        if not hasattr(config, "num_layers"):
            return _count_of(family, config)
        one, two = (_count_of(family, replace(config, num_layers=layers)) for layers in (1, 2))
    except (RuntimeError, TypeError, OverflowError):
        raise ValueError(f"the sizes are too large for any machine: {_sizes(config)}") from None
    return one + (int(config.num_layers) - 1) * (two - one)


def _count_of(family: Family, config: Any) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in family.module(config).parameters())


def _sizes(config: Any) -> str:
    sizes = {field.name: getattr(config, field.name) for field in fields_of(config)}
    return ", ".join(f"{name}={value}" for name, value in sizes.items() if type(value) is int and value)


def _example_elements(block: Block, large: bool) -> int:
    """The number of elements of all inputs and outputs in the largest example of the verification."""
    sizes = within(SIZES["distinct" if large else "long"], block.limits)
    shapes = [spec.shape for spec in block.inputs.values()] + [spec.shape for spec in block.outputs.values()]
    return sum(math.prod([size(dim, sizes) for dim in shape]) for shape in shapes)


def _require_memory(kind: str, config: Any, weights: int, memory_bytes: int) -> None:
    if memory_bytes > machine_bytes():
        raise ValueError(
            f"{kind}: the export would need about {memory_bytes / GIB:,.0f} GiB of memory, and this machine has "
            f"{machine_bytes() / GIB:,.0f} GiB: {weights:,} weights, {_sizes(config)}"
        )
