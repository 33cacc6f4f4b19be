"""The graphs with interventions, verified: sites whose changes are not those of transformers are left out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from export.graphs.graph import part_of
from export.hf.interventions.graph import with_interventions
from export.hf.interventions.sites import Site, candidates, find_sites
from export.hf.interventions.verification import PADDINGS, SIZES, failing
from export.hf.pretrained import ModelRefused
from export.hf.verification.examples import draw
from export.hf.verification.float64 import Original
from export.hf.verification.verifier import ANSWERS, Report
from export.verification.sessions import run_outputs, session
from models.block import Block

WHOLE, OUTPUT = "interventions", "interventions_output"  # file names; OUTPUT is WHOLE without the activations


@dataclass(frozen=True)
class Interventions:
    """The graphs by file name, and what a server needs to know of them: an entry of the description."""

    graphs: dict[str, onnx.ModelProto]
    entry: dict[str, Any]


def intervention_graphs(
    block: Block, original: Original, canonical: onnx.ModelProto, folder: Path, report: Report
) -> Interventions:
    """The canonical graph with inputs that change its activations; ``folder`` has its weights.

    Raises:
        ModelRefused: no activation can be changed as in transformers.
    """
    report(f"finding the activations of {WHOLE}.onnx")
    plain, sites = _sites(block, canonical, folder)
    whole = with_interventions(canonical, sites)
    report(f"verifying {WHOLE}.onnx")
    changing, returning = (session(graph, folder, prepack=False) for graph in (whole.SerializeToString(), plain))
    failed = failing(sites, changing, returning, block, original)
    if failed:
        sites = [site for site in sites if site.name not in failed]
        whole = with_interventions(canonical, sites)
    if not sites:
        raise ModelRefused("; ".join(f"{name}: {reason}" for name, reason in failed.items()) or "it has no layers")
    answers = [output.name for output in whole.graph.output if output.name in ANSWERS]
    graphs = {WHOLE: whole, OUTPUT: part_of(whole, [value.name for value in whole.graph.input], answers)}
    entry = {"sites": {site.name: [len(site.values), *_dims(site, block)] for site in sites}, "left_out": failed}
    return Interventions(graphs, entry)


def _sites(block: Block, canonical: onnx.ModelProto, folder: Path) -> tuple[bytes, list[Site]]:
    """The graph with the outputs of all candidates, and the sites among these."""
    graph = ir.from_proto(canonical).graph
    names = [str(value.name) for value in candidates(graph)]
    known = {output.name for output in canonical.graph.output}
    extended = onnx.ModelProto()
    extended.CopyFrom(canonical)
    extended.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    content = extended.SerializeToString()
    values = run_outputs(session(content, folder, prepack=False), names, draw(block.inputs, SIZES, PADDINGS[0]))
    return content, [*find_sites(graph, {name: value.shape for name, value in values.items()})]


def _dims(site: Site, block: Block) -> list[Any]:
    """The dimensions of an activation, by the names of the block's."""
    prefix = next((first for first in ("encoder_", "cross_") if site.name.startswith(first)), "")
    weights = [*block.outputs[f"{prefix}weights"].shape[1:]]
    if site.name.endswith("weights"):
        return weights
    batch, heads, queries, _ = weights
    return [batch, *([heads] if site.name.endswith("head_output") else []), queries, site.shape[-1]]
