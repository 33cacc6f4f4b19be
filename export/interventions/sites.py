"""The activations of a traced model that a request may change, found in its graph.

The graph stacks the weights and the hidden states of all layers into outputs, which shows where they are. Between the
hidden states of two layers, branches are added to the residual stream: the output of attention if it depends on the
layer's weights, else that of the MLP (Vaswani et al., 2017; Elhage et al., A mathematical framework for transformer
circuits, 2021). So neither names of modules nor a second trace are needed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

STACKS = {"weights": "", "encoder_weights": "encoder_", "cross_weights": "cross_"}  # the first part of sites' names
HIDDEN = "hidden_states"
HIDDEN_OF = {"weights": HIDDEN, "encoder_weights": f"encoder_{HIDDEN}"}
SAME_NUMBERS = {"Cast", "Identity", "Reshape", "Slice", "Transpose", "Unsqueeze"}  # operators that compute nothing
SITES = ("weights", "head_output", "hidden", "attention_output", "mlp_output")  # of a model with one stack
MLP = "mlp"
MAX_STEPS = 8  # operators between a softmax and the weights that are returned
NORMS = {  # operators of norms and of scales, which may stand in the residual stream
    "Add", "Cast", "Clip", "Div", "Identity", "LayerNormalization", "Max", "Mul", "Pow", "RMSNormalization",
    "Reciprocal", "ReduceL2", "ReduceMean", "ReduceSum", "Reshape", "SimplifiedLayerNormalization", "Sqrt", "Sub",
}  # fmt: skip
Shapes = Mapping[str, tuple[int, ...]]  # of values, by name, in one run


@dataclass(frozen=True)
class Site:
    """An activation of every layer: the names of ``values`` of the graph, and their shape in one run."""

    name: str
    values: tuple[str, ...]
    shape: tuple[int, ...]


def find_sites(graph: ir.Graph, shapes: Shapes) -> Iterator[Site]:
    """The sites of ``graph``; ``shapes`` are those of ``candidates``.

    ``weights`` [batch, heads, m, n] follow the softmax, ``head_output`` [batch, heads, m, width] is the product of a
    head's weights and values, if all layers have heads of one width, ``hidden`` is the input of a layer,
    ``attention_output`` and ``mlp_output`` are added to it [batch, m, width]. Those of an encoder beside a decoder, and
    of attention to it, have a prefix.
    """
    softmaxes = {name: [_softmax(value) for value in stacked(graph, name)] for name in STACKS}
    places = {value.name: name for name, values in softmaxes.items() for value in values if value is not None}
    for name, prefix in STACKS.items():
        # Those of fewer axes have batch and heads in one.
        weights = [value for value in softmaxes[name] if value is not None and len(shapes[_name(value)]) == 4]
        if not weights or len(weights) < len(softmaxes[name]):
            continue
        yield _site(f"{prefix}weights", weights, shapes)
        products = [_product(value) for value in weights]
        found = [value for value in products if value is not None and len(shapes[_name(value)]) == 4]
        if len(found) == len(weights) and len({shapes[_name(value)] for value in found}) == 1:
            yield _site(f"{prefix}head_output", found, shapes)
    for name, hidden in HIDDEN_OF.items():
        states = stacked(graph, hidden)
        if len(states) < 2:
            continue
        prefix = STACKS[name]
        yield _site(f"{prefix}hidden", states[:-1], shapes)
        layers = [_Layer(graph, *ends, places, shapes).branches() for ends in pairwise(states)]
        for kind, first in (("", prefix), ("cross_weights", STACKS["cross_weights"]), (MLP, prefix)):
            values = [layer.get(kind or name) for layer in layers]
            branches = [value for value in values if value is not None]
            if len(branches) == len(layers):
                yield _site(f"{first}{MLP if kind == MLP else 'attention'}_output", branches, shapes)


def find_cuts(graph: ir.Graph, shapes: Shapes) -> tuple[str, ...]:
    """The values between the layers: the hidden states, except that the last sum of the residual stream replaces the
    last ones, which a norm may have changed. If the stream has norms (Vaswani et al., 2017), the last ones are kept.

    Empty if the graph does not return hidden states.
    """
    states = stacked(graph, HIDDEN)
    if len(states) < 2:
        return ()
    last = _Layer(graph, states[-2], states[-1], {}, shapes).last_sum or states[-1]
    return tuple(map(_name, [*states[:-1], last]))


def candidates(graph: ir.Graph) -> list[ir.Value]:
    """The values whose shapes ``find_sites`` needs."""
    sums = [value for node in graph if node.op_type == "Add" for value in (*node.inputs, *node.outputs)]
    weights = [_softmax(value) for name in STACKS for value in stacked(graph, name)]
    products = [_product(value) for value in weights if value is not None]
    hidden = [value for name in HIDDEN_OF.values() for value in stacked(graph, name)]
    every = (*sums, *weights, *products, *hidden)
    found = {value.name: value for value in every if value is not None and value.producer() is not None}
    return [*found.values()]


def stacked(graph: ir.Graph, name: str) -> list[ir.Value]:
    """The values of the layers that the output ``name`` stacks; empty if it is absent, or made in another way."""
    output = next((value for value in graph.outputs if value.name == name), None)
    node = output.producer() if output is not None else None
    if node is not None and node.op_type == "Gather" and node.inputs[0] is not None:  # of chosen layers
        output, node = node.inputs[0], node.inputs[0].producer()
    if output is None or node is None:
        return []
    parts = [*node.inputs] if node.op_type == "Concat" else [output]
    makers = [part.producer() for part in parts if part is not None]
    values = [maker.inputs[0] for maker in makers if maker is not None and maker.op_type == "Unsqueeze"]
    layers = [value for value in values if value is not None]
    return layers if len(layers) == len(parts) else []


def _softmax(weights: ir.Value) -> ir.Value | None:
    """The value after the softmax of ``weights``, with as many keys, that is multiplied with the layer's values."""
    value, path, is_cut = weights, [weights], False
    for _ in range(MAX_STEPS):
        node = value.producer()
        if node is None:
            return None
        if node.op_type == "Softmax":
            return next((value for value in reversed(path) if _product(value) is not None), None)
        before = node.inputs[-1 if node.op_type == "Where" else 0]  # Where: the input for rows with keys
        if before is None:
            return None
        value, is_cut = before, is_cut or node.op_type == "Slice"  # gpt-oss cuts off its sink, which is no key
        if not is_cut:
            path.append(value)
    return None


def _product(weights: ir.Value, steps: int = MAX_STEPS) -> ir.Value | None:
    """The product of ``weights`` and values."""
    for node, place in weights.uses():
        if node.op_type == "MatMul" and place == 0:
            return _with_past(node.outputs[0])
    for node, place in weights.uses() if steps else ():
        if node.op_type in SAME_NUMBERS and place == 0:
            product = _product(node.outputs[0], steps - 1)
            if product is not None:
                return product
    return None


def _with_past(product: ir.Value) -> ir.Value:
    """The sum of ``product`` and that of earlier keys, if a step of generation multiplies them separately."""
    value = product
    while True:
        uses = [use.node for use in value.uses()]
        node = uses[0] if len(uses) == 1 else None
        if node is not None and node.op_type in SAME_NUMBERS:
            value = node.outputs[0]
            continue
        if node is None or node.op_type != "Add":
            return product
        others = [_maker(other) for other in node.inputs if other is not None and other is not value]
        return node.outputs[0] if others == ["MatMul"] else product


def _maker(value: ir.Value) -> str | None:
    """The operator that has computed the numbers of ``value``."""
    node = value.producer()
    while node is not None and node.op_type in SAME_NUMBERS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node.op_type if node is not None else None


class _Layer:
    """The nodes between the hidden states before and after a layer; ``places`` has the names of weights by value.

    ``last_sum`` is the last sum of the residual stream if no norm precedes it in the stream.
    """

    last_sum: ir.Value | None

    def __init__(
        self, graph: ir.Graph, start: ir.Value, end: ir.Value, places: Mapping[str | None, str], shapes: Shapes
    ) -> None:
        self._places, self._shapes = places, shapes
        self._shape = shapes[_name(start)]
        needed = _ancestors(end, start)
        self._within = {start.name}  # values that depend on the start
        self._nodes: list[ir.Node] = []
        for node in graph:
            if node in needed and self._dynamic(node, self._within):
                self._nodes.append(node)
                self._within |= {value.name for value in node.outputs}
        self._stream: set[str | None] = {start.name}
        self._added: list[ir.Value] = []
        unnormalized, self.last_sum = {start.name}, None
        for node in self._nodes:
            inputs = self._dynamic(node, self._within)
            if self._is_sum(node, inputs):
                own = [value for value in inputs if value.name not in self._stream]
                if len(own) == 1:
                    self._added += own
                    (total,) = node.outputs
                    self._stream.add(total.name)
                    if any(value.name in unnormalized for value in inputs):
                        unnormalized.add(total.name)
                        self.last_sum = total
                    else:
                        self.last_sum = None
                    continue
            if node.op_type in NORMS and all(value.name in self._stream for value in inputs):
                self._stream |= {value.name for value in node.outputs}

    def branches(self) -> dict[str, ir.Value]:
        """The branches that are added to the stream, by the name of the weights that each depends on, or MLP.

        A sum of two branches counts as both. A kind with several branches in a layer is left out.
        """
        found: dict[str, list[ir.Value]] = {}
        for value in (part for branch in self._added for part in self._parts(branch)):
            kinds = self._kinds(value)
            if len(kinds) <= 1:
                found.setdefault(next(iter(kinds), MLP), []).append(value)
        return {kind: values[0] for kind, values in found.items() if len(values) == 1}

    def _parts(self, branch: ir.Value) -> list[ir.Value]:
        """``branch``, or its two parts if it is the sum of one that attends and one that does not."""
        node = branch.producer()
        if node is not None:
            inputs = self._dynamic(node, self._within)
            if self._is_sum(node, inputs) and len({bool(self._kinds(value)) for value in inputs}) == 2:
                return inputs
        return [branch]

    def _is_sum(self, node: ir.Node, inputs: Sequence[ir.Value]) -> bool:
        """Whether it adds up two tensors of the stream's shape."""
        return (
            node.op_type == "Add"
            and len(inputs) == 2
            and all(self._shapes.get(_name(value)) == self._shape for value in inputs)
        )

    def _kinds(self, value: ir.Value) -> set[str]:
        """The names of the weights on which ``value`` depends other than through the stream."""
        kinds, seen, todo = set[str](), set[str | None](), [value]
        while todo:
            current = todo.pop()
            if current.name in seen or current.name in self._stream:
                continue
            seen.add(current.name)
            if current.name in self._places:
                kinds.add(self._places[current.name])
            node = current.producer()
            todo += self._dynamic(node, self._within) if node is not None else ()
        return kinds

    @staticmethod
    def _dynamic(node: ir.Node, within: Collection[str | None]) -> list[ir.Value]:
        return [value for value in node.inputs if value is not None and value.name in within]


def _ancestors(end: ir.Value, start: ir.Value) -> set[ir.Node]:
    """The nodes that compute ``end``, without those that compute ``start``."""
    nodes, todo = set[ir.Node](), [end]
    while todo:
        value = todo.pop()
        node = value.producer()
        if value is start or node is None or node in nodes:
            continue
        nodes.add(node)
        todo += [value for value in node.inputs if value is not None]
    return nodes


def _site(name: str, values: Sequence[ir.Value], shapes: Shapes) -> Site:
    names = tuple(map(_name, values))
    return Site(name, names, shapes[names[0]])


def _name(value: ir.Value) -> str:
    assert value.name is not None, "values of an exported graph have names"
    return value.name
