"""The graphs with interventions, verified: sites whose changes are not those of the module are left out."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from torch import nn

from export.graphs.graph import part_of
from export.interventions.graph import with_interventions
from export.interventions.sites import HIDDEN, Site, find_sites
from export.interventions.traced import trace
from export.interventions.verification import Verification
from export.verification.budget import Reference
from export.verification.checks import in_torch
from export.verification.sessions import session
from models.block import Block
from models.examples import OPTIONS, SIZES, draw

WHOLE, OUTPUT = "interventions", "interventions_output"  # file names; OUTPUT is WHOLE without the activations
ANSWERS = ("output",)  # of a block
EXAMPLES = ("plain", "attn_mask", "past")


@dataclass(frozen=True)
class Interventions:
    """The graphs by file name, and the entry of the description from which a server reads how to run them."""

    graphs: dict[str, onnx.ModelProto]
    entry: dict[str, Any]


def whole_and_output(whole: onnx.ModelProto, answers: Collection[str]) -> dict[str, onnx.ModelProto]:
    """The graph ``whole``, whose activations a request may change, and its part that has these answers alone."""
    names = [output.name for output in whole.graph.output if output.name in answers]
    return {WHOLE: whole, OUTPUT: part_of(whole, [value.name for value in whole.graph.input], names)}


def sites_entry(sites: Sequence[Site], left_out: dict[str, str], block: Block) -> dict[str, Any]:
    """The shape of each of the ``sites``, and why others are left out."""
    return {"sites": {site.name: [len(site.values), *_dims(site, block)] for site in sites}, "left_out": left_out}


def reasons_of(failed: Mapping[str, str]) -> str:
    """Why none of the sites can be changed, in one line."""
    return "; ".join(f"{name}: {reason}" for name, reason in failed.items()) or "it has no layers"


def of_stack(block: Block, module: nn.Module, canonical: onnx.ModelProto, folder: Path) -> Interventions | None:
    """The canonical graph of a ``block`` with inputs that change its activations; None if it has no layers.

    ``folder`` has its weights.
    """
    if HIDDEN not in block.outputs or block.dtype != "float32":
        return None
    chosen = (OPTIONS[name] for name in EXAMPLES)
    examples = [draw(block, SIZES["distinct"], one) for one in chosen if {*one.tensors} <= block.inputs.keys()]
    traced = trace(canonical, folder, lambda _: examples[0])
    sites = [*find_sites(traced.graph, traced.shapes)]
    run = session(with_interventions(canonical, sites).SerializeToString(), folder, prepack=False)
    verification = Verification(run, traced.plain, _original(block, module), ANSWERS)
    failed = verification.failures(sites, examples).sites
    sites = [site for site in sites if site.name not in failed]
    if not sites:
        return Interventions({}, {"refused": reasons_of(failed)})
    whole = with_interventions(canonical, sites)
    return Interventions(whole_and_output(whole, ANSWERS), sites_entry(sites, failed, block))


def _original(block: Block, module: nn.Module) -> Reference:
    """The outputs of ``module`` in numpy's float32 or float64."""
    modules = {np.float32: module, np.float64: deepcopy(module).double()}
    return lambda inputs, dtype: in_torch(replace(block, dtype=dtype.__name__), modules[dtype], inputs)


def _dims(site: Site, block: Block) -> list[Any]:
    """The dimensions of an activation, by the names of the block's."""
    prefix = next((first for first in ("encoder_", "cross_") if site.name.startswith(first)), "")
    weights = [*block.outputs[f"{prefix}weights"].shape[1:]]
    if site.name.endswith("weights"):
        return weights
    batch, heads, queries, _ = weights
    return [batch, *([heads] if site.name.endswith("head_output") else []), queries, site.shape[-1]]
