"""The graphs with interventions, verified: sites whose changes are not those of transformers are left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
from onnxruntime import InferenceSession

from export.graphs.graph import part_of
from export.hf.generation.graphs import Generation
from export.hf.interventions.part_sessions import PartSessions
from export.hf.interventions.parts import HEAD, Cuts
from export.hf.interventions.steps import step_graphs
from export.hf.pretrained import ModelRefused
from export.hf.verification.examples import SIZES, draw
from export.hf.verification.float64 import Original
from export.hf.verification.verifier import ANSWERS, Report
from export.hf.wrapper import VECTORS
from export.interventions.graph import with_interventions
from export.interventions.graphs import WHOLE, Interventions, reasons_of, sites_entry, whole_and_output
from export.interventions.sites import HIDDEN, SITES, Site, find_cuts, find_sites
from export.interventions.traced import trace
from export.interventions.verification import Verification
from export.verification.sessions import Arrays, session
from models.block import Block

PADDINGS = (None, "right")


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
    examples = [draw(block.inputs, SIZES["distinct"], padding, seed) for seed, padding in enumerate(PADDINGS)]
    names = [value.name for value in canonical.graph.output if value.name not in sum(VECTORS.values(), ())]
    canonical = part_of(canonical, [value.name for value in canonical.graph.input], names)
    traced = _traced(block, canonical, folder, examples[0])
    sites = traced.sites
    whole = with_interventions(canonical, sites)
    parts = traced.parts(sites)
    report(f"verifying {WHOLE}.onnx")
    changing = session(whole.SerializeToString(), folder, prepack=False)
    run = parts.sessions(folder) if parts else None
    in_parts = partial(run.changed, traced.plain) if parts and run and parts.layers else None
    verification = Verification(changing, traced.plain, original, ANSWERS, in_parts)
    failed = verification.failures(sites, examples)
    if failed.sites:
        sites = [site for site in sites if site.name not in failed.sites]
        whole = with_interventions(canonical, sites)
        parts = traced.parts(sites)
    if not sites:
        raise ModelRefused(reasons_of(failed.sites))
    graphs, entry = whole_and_output(whole, ANSWERS), sites_entry(sites, failed.sites, block)
    if parts and run and not run.head_failure(traced.plain, examples, original):  # no site is in the head
        positions = str(block.outputs[HIDDEN].shape[2])
        entry["head"] = {"is_positionwise": run.is_positionwise(traced.plain, examples[0], block.inputs, positions)}
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
    """The activations of the ``canonical`` graph; ``plain`` is a session of it that returns all candidates."""

    canonical: onnx.ModelProto
    plain: InferenceSession
    sites: list[Site]
    cuts: Cuts | None

    def parts(self, sites: Sequence[Site]) -> "_Parts | None":
        """The graphs of the parts with inputs that change ``sites``; only the head's if there are two stacks."""
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


def _traced(block: Block, canonical: onnx.ModelProto, folder: Path, example: Arrays) -> _Traced:
    traced = trace(canonical, folder, lambda _: example)
    cuts = find_cuts(traced.graph, traced.shapes)
    return _Traced(
        canonical,
        traced.plain,
        [*find_sites(traced.graph, traced.shapes)],
        Cuts(canonical, cuts, block.outputs[HIDDEN].shape[1:]) if cuts else None,
    )
