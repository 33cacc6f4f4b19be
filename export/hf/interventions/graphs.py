"""The graphs with interventions, verified: sites whose changes are not those of transformers are left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnxruntime import InferenceSession

from export.graphs.graph import part_of
from export.hf.generation.graphs import Generation
from export.hf.interventions.graph import with_interventions
from export.hf.interventions.part_sessions import PartSessions
from export.hf.interventions.parts import HEAD, Cuts
from export.hf.interventions.sites import SITES, Site, find_cuts, find_sites
from export.hf.interventions.steps import step_graphs
from export.hf.interventions.traced import trace
from export.hf.interventions.verification import PADDINGS, failures, head_failure
from export.hf.interventions.verification import SIZES as VERIFIED
from export.hf.pretrained import ModelRefused
from export.hf.verification.examples import draw
from export.hf.verification.float64 import Original
from export.hf.verification.verifier import ANSWERS, Report
from export.hf.wrapper import HIDDEN
from export.verification.sessions import session
from models.block import Block

WHOLE, OUTPUT = "interventions", "interventions_output"  # file names; OUTPUT is WHOLE without the activations


@dataclass(frozen=True)
class Interventions:
    """The graphs by file name, and what a server needs to know of them: an entry of the description."""

    graphs: dict[str, onnx.ModelProto]
    entry: dict[str, Any]


def intervention_graphs(
    block: Block,
    original: Original,
    canonical: onnx.ModelProto,
    generation: Generation,
    folder: Path,
    report: Report,
) -> Interventions:
    """The canonical graph and those of ``generation`` with inputs that change their activations.

    ``folder`` has their weights.

    Raises:
        ModelRefused: no activation can be changed as in transformers.
    """
    report(f"finding the activations of {WHOLE}.onnx")
    traced = _traced(block, canonical, folder)
    sites = traced.sites
    whole = with_interventions(canonical, sites)
    parts = traced.parts(sites)
    report(f"verifying {WHOLE}.onnx")
    changing = session(whole.SerializeToString(), folder, prepack=False)
    run = parts.sessions(folder) if parts else None
    layered = run if parts and parts.layers else None
    failed = failures(sites, changing, traced.plain, layered, block, original)
    if failed.sites:
        sites = [site for site in sites if site.name not in failed.sites]
        whole = with_interventions(canonical, sites)
        parts = traced.parts(sites)
    if not sites:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.sites.items())
        raise ModelRefused(reasons or "it has no layers")
    answers = [output.name for output in whole.graph.output if output.name in ANSWERS]
    graphs = {WHOLE: whole, OUTPUT: part_of(whole, [value.name for value in whole.graph.input], answers)}
    entry: dict[str, Any] = {
        "sites": {site.name: [len(site.values), *_dims(site, block)] for site in sites}, "left_out": failed.sites
    }  # fmt: skip
    if parts and run and not head_failure(run, traced.plain, block, original):  # no site is in the head
        inputs = draw(block.inputs, VERIFIED, PADDINGS[0])
        positions = str(block.outputs[HIDDEN[0]].shape[2])
        entry["head"] = {"is_positionwise": run.is_positionwise(traced.plain, inputs, block.inputs, positions)}
        entry["has_layers"] = bool(parts.layers) and failed.parts is None
        graphs |= {HEAD: parts.head, **(parts.layers if entry["has_layers"] else {})}
    if generation.exact:
        report("verifying steps of generation with interventions")
        steps = step_graphs(generation, sites, traced.plain, block, original, folder)
        entry["generation"] = {"sites": steps.sites, "left_out": steps.left_out}
        graphs |= steps.graphs
    return Interventions(graphs, entry)


@dataclass(frozen=True)
class _Traced:
    """The activations of the ``canonical`` graph, of which ``plain`` is a session that returns all candidates."""

    canonical: onnx.ModelProto
    plain: InferenceSession
    sites: list[Site]
    cuts: Cuts | None

    def parts(self, sites: Sequence[Site]) -> "_Parts | None":
        """The graphs of the parts with inputs that change ``sites``; of the head alone if there are two stacks."""
        if self.cuts is None:
            return None
        count = len(self.cuts.values) - 1
        has_layers = "hidden" in {site.name for site in sites} and all(
            site.name in SITES and len(site.values) == count
            for site in sites  # not every layer of Lfm2 attends
        )
        head = self.cuts.head()
        if head is None:
            return None
        return _Parts(self.cuts, head, (self.cuts.layers(sites) if has_layers else None) or {})


@dataclass(frozen=True)
class _Parts:
    cuts: Cuts
    head: onnx.ModelProto
    layers: dict[str, onnx.ModelProto]

    def sessions(self, folder: Path) -> PartSessions:
        head, *layers = (
            session(graph.SerializeToString(), folder, prepack=False) for graph in (self.head, *self.layers.values())
        )
        return PartSessions(self.cuts.values, head, layers)


def _traced(block: Block, canonical: onnx.ModelProto, folder: Path) -> _Traced:
    traced = trace(canonical, folder, lambda _: draw(block.inputs, VERIFIED, PADDINGS[0]))
    cuts = find_cuts(traced.graph, traced.shapes)
    return _Traced(
        canonical,
        traced.plain,
        [*find_sites(traced.graph, traced.shapes)],
        Cuts(canonical, cuts, block.outputs[HIDDEN[0]].shape[1:]) if cuts else None,
    )


def _dims(site: Site, block: Block) -> list[Any]:
    """The dimensions of an activation, by the names of the block's."""
    prefix = next((first for first in ("encoder_", "cross_") if site.name.startswith(first)), "")
    weights = [*block.outputs[f"{prefix}weights"].shape[1:]]
    if site.name.endswith("weights"):
        return weights
    batch, heads, queries, _ = weights
    return [batch, *([heads] if site.name.endswith("head_output") else []), queries, site.shape[-1]]
