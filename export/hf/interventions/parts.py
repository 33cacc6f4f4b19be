"""A model in parts: each layer, from its hidden states to those of the next one, and the head after the last layer.

So a sweep does not recompute the layers below a change, and the head can be applied to every layer's hidden states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import onnx

from export.graphs.graph import part_of
from export.hf.verification.verifier import ANSWERS
from export.interventions.graph import with_interventions
from export.interventions.sites import Site
from models.block import Dim

HEAD = "head"  # file name
START, END = "hidden_in", "hidden_out"  # input and output of parts


def layer_name(layer: int) -> str:
    """The file name of the graph of a layer."""
    return f"layer_{layer}"


@dataclass(frozen=True)
class Cuts:
    """The values of ``model`` between its parts: before each layer and after the last one, [batch, n, width]."""

    model: onnx.ModelProto
    values: tuple[str, ...]
    shape: tuple[Dim, ...]

    def head(self) -> onnx.ModelProto | None:
        """The graph of the answers from the values after the last layer; None if they do not depend on these."""
        answers = [output.name for output in self.model.graph.output if output.name in ANSWERS]
        return self._part(self.model, self.values[-1], {name: name for name in answers})

    def layers(self, sites: Sequence[Site]) -> dict[str, onnx.ModelProto] | None:
        """The graphs of the layers by file name, each with inputs that change its own ``sites``.

        None if a layer reads anything from earlier layers but its hidden states, or does not read these.
        """
        graphs = {}
        for layer, (start, end) in enumerate(pairwise(self.values)):
            own = [replace(site, values=(site.values[layer],)) for site in sites]
            part = self._part(with_interventions(self.model, own), start, {end: END})
            if part is None:
                return None
            made = {name for node in part.graph.node for name in node.output}
            if made & {*self.values[: layer + 1]}:
                return None
            graphs[layer_name(layer)] = part
        return graphs

    def _part(self, model: onnx.ModelProto, start: str, outputs: Mapping[str, str]) -> onnx.ModelProto | None:
        """The nodes between the value ``start`` and the values ``outputs``, which are renamed to those of the mapping.

        None if ``start`` is not used: hidden states may be returned in another order than that of the layers.
        """
        part = onnx.ModelProto()
        part.CopyFrom(model)
        graph = part.graph
        for node in graph.node:
            node.input[:] = [START if name == start else outputs.get(name, name) for name in node.input]
            node.output[:] = [f"{name}_before" if name == start else outputs.get(name, name) for name in node.output]
        if start in outputs:  # the answer is the hidden states of the last layer
            graph.node.append(onnx.helper.make_node("Identity", [START], [outputs[start]]))
        graph.input.append(self._value(START))
        if END in outputs.values():
            graph.output.append(self._value(END))
        part = part_of(part, [value.name for value in graph.input], [*outputs.values()])
        used = {name for node in part.graph.node for name in node.input}
        inputs = [value for value in part.graph.input if value.name in used]
        del part.graph.input[:]
        part.graph.input.extend(inputs)
        return part if START in used else None

    def _value(self, name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, self.shape)
