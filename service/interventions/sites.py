"""The activations of a version that a request may change, as the metadata of its graph says."""

from collections.abc import Collection, Sequence

from pydantic import BaseModel

from service.tensors.dims import Sizes, dim_size

WEIGHTS, HEADS = "weights", "head_output"  # ends of the names of sites with heads
KEEP, ADD, DIRECTION, RENORMALIZE = "keep", "add", "direction", "renormalize"  # ends of names of inputs
RETURNED = {"hidden": "hidden_states", "encoder_hidden": "encoder_hidden_states"}  # sites by another name in outputs
DECODER_IDS, IDS = "decoder_input_ids", "input_ids"


class Head(BaseModel, frozen=True):
    """The graph from the hidden states behind the last layer to the answers."""

    is_positionwise: bool  # each position is computed from its own hidden state


class OfSteps(BaseModel, frozen=True):
    """The sites of the graphs by which a version generates, and why it does not have the others there."""

    sites: tuple[str, ...] = ()
    left_out: dict[str, str] = {}


class Sites(BaseModel, frozen=True):
    """The shape of each site: [layers, batch, heads, queries, keys] of weights, [layers, batch, heads, positions,
    width] of the outputs of heads, [layers, batch, positions, width] of the others."""

    refused: str | None = None
    sites: dict[str, tuple[int | str, ...]] = {}
    head: Head | None = None
    has_layers: bool = False  # there is a graph of each layer, from its hidden states to those of the next one
    generation: OfSteps = OfSteps()

    @property
    def of_steps(self) -> "Sites":
        """The sites that generation has."""
        return self.model_copy(update={"sites": {name: self.sites[name] for name in self.generation.sites}})

    @property
    def has_positionwise_head(self) -> bool:
        """Whether there is a head that computes each position from its own hidden state."""
        return self.head is not None and self.head.is_positionwise

    def shape(self, site: str, sizes: Sizes) -> tuple[int, ...]:
        """The shape of ``site`` in a run of these sizes."""
        return tuple(dim_size(dim, sizes) for dim in self.sites[site])


def has_batch(shape: Sequence[int | str]) -> bool:
    """Whether the first axis of an input is that of the batch."""
    return "batch" in str(shape[0])


def axes_of(site: str) -> tuple[str, ...]:
    """The axes of a site; a request selects along each but the batch and the width."""
    if site.endswith(WEIGHTS):
        return "layers", "batch", "heads", "queries", "keys"
    return "layers", "batch", *(("heads",) if site.endswith(HEADS) else ()), "positions", "width"


def along_of(site: str) -> int:
    """The place of the axis of positions, or of queries, in ``axes_of``."""
    return axes_of(site).index("queries" if site.endswith(WEIGHTS) else "positions")


def ids_of(site: str, inputs: Collection[str]) -> str:
    """The one of ``inputs`` whose tokens are the positions of a site."""
    return DECODER_IDS if DECODER_IDS in inputs and not site.startswith("encoder_") else IDS
