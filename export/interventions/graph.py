"""Inputs of a graph that change its activations, each [layers, axes of the activation].

An activation is multiplied by ``keep``; ``add`` is added, and ``direction`` times the length of each vector. The
weights of a query are divided by their sum where ``renormalize`` is 1. Without these inputs the graph computes the
unchanged model.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from export.interventions.sites import Site

KEEP, ADD, DIRECTION, RENORMALIZE = "keep", "add", "direction", "renormalize"
NEUTRAL = {KEEP: 1.0, ADD: 0.0, DIRECTION: 0.0, RENORMALIZE: 0.0}
TINY = float(np.finfo(np.float32).tiny)  # in place of a sum of 0
RETURNED = ("weights", "hidden")  # sites that the model returns; the others become outputs


def kinds_of(site: str) -> tuple[str, ...]:
    """The kinds of inputs that change ``site``."""
    if site.endswith("weights"):
        return KEEP, ADD, RENORMALIZE
    return (KEEP, ADD) if site.endswith("head_output") else (KEEP, ADD, DIRECTION)


def input_name(site: str, kind: str) -> str:
    """The name of an input, and the first part of the names of its dimensions."""
    return f"{site}_{kind}"


def with_interventions(model: onnx.ModelProto, sites: Sequence[Site], returns_sites: bool = True) -> onnx.ModelProto:
    """``model`` with inputs that change ``sites``, and with outputs of those that it does not return.

    It returns activations as they are after the change. Without ``returns_sites`` it has no further outputs.
    """
    changed = ir.from_proto(model)
    graph = changed.graph
    builder = _Builder(graph, returns_sites)
    for site in sites:
        builder.change(site)
    changed_model = ir.to_proto(changed)
    _declare(changed_model, sites, {value.name for value in model.graph.output})
    return changed_model


class _Builder:
    """Adds nodes to ``graph``."""

    def __init__(self, graph: ir.Graph, returns_sites: bool) -> None:
        self._graph, self._returns_sites = graph, returns_sites
        self._values = {value.name: value for node in graph for value in node.outputs}
        self._last = self._constant("heed_last_axis", np.array([-1]))
        self._one, self._tiny = (
            self._constant(name, np.float32(number)) for name, number in (("heed_one", 1), ("heed_tiny", TINY))
        )

    def change(self, site: Site) -> None:
        """Replace each layer's activation by the changed one; add an output that stacks them if the model has none."""
        inputs = {kind: self._input(site, kind) for kind in kinds_of(site.name)}
        changed = [self._changed(name, layer, inputs) for layer, name in enumerate(site.values)]
        if self._returns_sites and not site.name.endswith(RETURNED):
            axis = self._constant("heed_first_axis", np.array([0]))
            parts, nodes = [], []
            for value in changed:
                node = ir.node("Unsqueeze", [value, axis])
                parts.append(node.outputs[0])
                nodes.append(node)
            stack = ir.node("Concat", parts, {"axis": 0})
            stack.outputs[0].name = site.name
            stack.outputs[0].dtype = ir.DataType.FLOAT
            self._graph.extend([*nodes, stack])
            self._graph.outputs.append(stack.outputs[0])

    def _changed(self, name: str, layer: int, inputs: dict[str, ir.Value]) -> ir.Value:
        before = self._values[name]
        producer = before.producer()
        assert producer is not None, "a site is computed"
        uses = [*before.uses()]
        nodes: list[ir.Node] = []

        def op(operator: str, *values: ir.Value, **attributes: int) -> ir.Value:
            node = ir.node(operator, values, attributes)
            nodes.append(node)
            return node.outputs[0]

        index = self._constant(f"heed_layer_{layer}", np.array(layer))
        own = {kind: op("Gather", value, index, axis=0) for kind, value in inputs.items()}
        value = op("Mul", before, own[KEEP])
        if DIRECTION in own:
            length = op("ReduceL2", before, self._last, keepdims=1)
            value = op("Add", value, op("Mul", length, own[DIRECTION]))
        value = op("Add", value, own[ADD])
        if RENORMALIZE in own:
            total = op("ReduceSum", value, self._last, keepdims=1)
            others = op("Sub", self._one, own[RENORMALIZE])
            divisor = op("Add", op("Mul", total, own[RENORMALIZE]), others)  # the sum, or exactly 1
            value = op("Div", value, op("Max", divisor, self._tiny))
        value.name = f"{name}_changed"
        self._graph.insert_after(producer, nodes)
        for node, place in uses:
            node.replace_input_with(place, value)
        return value

    def _input(self, site: Site, kind: str) -> ir.Value:
        name = input_name(site.name, kind)
        shape = (len(site.values), *[1] * len(site.shape))
        value = ir.val(name, ir.DataType.FLOAT, shape, const_value=ir.tensor(np.full(shape, NEUTRAL[kind], np.float32)))
        self._graph.inputs.append(value)
        self._graph.register_initializer(value)
        return value

    def _constant(self, name: str, number: Any) -> ir.Value:
        known = self._graph.initializers.get(name)
        if known is not None:
            return known
        value = ir.val(name, const_value=ir.tensor(np.asarray(number), name=name))
        self._graph.register_initializer(value)
        return value


def _declare(model: onnx.ModelProto, sites: Sequence[Site], declared: Collection[str]) -> None:
    """Set the dimensions of the new inputs and outputs, each with its own name, since an input's may be 1.

    Those of outputs that are ``declared`` stay: a request may choose the layers of weights.
    """
    added = [*model.graph.input, *(value for value in model.graph.output if value.name not in declared)]
    for site in sites:
        for value in added:
            if value.name == site.name or value.name in [input_name(site.name, kind) for kind in kinds_of(site.name)]:
                shape = value.type.tensor_type.shape
                del shape.dim[:]
                shape.dim.add(dim_value=len(site.values))
                for axis in range(len(site.shape)):
                    shape.dim.add(dim_param=f"{value.name}_{axis}")
