"""Trace a torch module and decompose its operators into those that ONNX has, faster than ``torch.onnx.export`` does.

Before torch decomposes a traced program, it makes it functional, in two more passes over tensors of a slow kind. A
program without in-place operators is functional already, so one pass is enough here. Then torch looks for operators
whose inputs need another type, and computes every node once more; here the tensors of the previous pass are reused.
The functions that decompose an operator are torch's own, so the resulting nodes are the same. The internal functions
are those of torch 2.13.
"""

import builtins
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import config as dynamo
from torch._guards import detect_fake_mode
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export import _trace as trace
from torch.export._trace import _ignore_backend_decomps
from torch.export.exported_program import (
    _override_composite_implicit_decomp,
    _split_decomp_table_to_cia_and_python_decomp,
)
from torch.export.graph_signature import ExportGraphSignature
from torch.fx.experimental import _config as symbols
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts
from torch.onnx._internal.exporter import _decomp, _flags, _fx_passes
from torch.onnx._internal.exporter._capture_strategies import TorchExportNonStrictStrategy
from torch.onnx._internal.exporter._registration import ONNXRegistry
from torch.onnx._internal.fx.passes import type_promotion

MAX_FRACTIONS = 1024  # most numbers that are stored as constants in a graph
OPSET = 20  # the newest that Triton's ONNX Runtime of 2024 still loads
NEUTRAL = {"add": 0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}  # numbers that change nothing
REDUCTIONS = (
    torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim, torch.ops.aten.all.dim, torch.ops.aten.any.dim
)  # fmt: skip
DETACH = torch.ops.aten.detach_.default  # changes no number
ASSERTION = torch.ops.aten._assert_tensor_metadata.default  # of a dtype that tracing has seen
WITHOUT_GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled  # a plain call


class _Decomposed(ExportedProgram):
    """A program that is decomposed when torch's exporter gets it."""


class _TypePromotion(type_promotion._TypePromotionInterpreter):
    """Inserts casts where an operator's inputs need another type; nodes have their tensors from tracing."""

    def run_node(self, n: fx.Node) -> Any:
        rule = type_promotion.get_type_promotion_rule(n, self.type_promotion_table)
        if rule:
            with self._set_current_node(n):
                self._maybe_promote_node(n, rule)
        return n.meta["val"] if "val" in n.meta else super().run_node(n)


class _Interpreter(fx.Interpreter):
    """Runs a graph; multiplies a complex tensor by a number without a complex constant, a type that ONNX lacks."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is torch.ops.aten.mul.Tensor and isinstance(args[0], ComplexTensor) and isinstance(args[1], float):
            return ComplexTensor(args[0].re * args[1], args[0].im * args[1])
        return super().call_function(target, args, kwargs)


@contextmanager
def without_repetition() -> Iterator[None]:
    """A context in which torch's exporter does not compute again what ``traced`` has computed."""
    decompose = _fx_passes.decompose_with_registry

    def decompose_once(program: ExportedProgram, registry: ONNXRegistry) -> ExportedProgram:
        return program if isinstance(program, _Decomposed) else decompose(program, registry)

    with (
        _replaced(_fx_passes, "decompose_with_registry", decompose_once),
        _replaced(type_promotion, "_TypePromotionInterpreter", _TypePromotion),
    ):
        yield


@contextmanager
def _replaced(module: ModuleType, name: str, replacement: object) -> Iterator[None]:
    """A context in which ``module`` has ``replacement`` in place of a function, which may be a built-in one."""
    original = getattr(module, name, vars(builtins).get(name))
    setattr(module, name, replacement)
    try:
        yield
    finally:
        setattr(module, name, original)


@functools.cache
def operators() -> ONNXRegistry:
    """The ONNX translation of each torch operator.

    ``torch.onnx.export`` builds this registry from the source code of 500 functions for every graph, which takes as
    long as the export of a small graph. So one registry is made for all graphs.
    """
    return ONNXRegistry.from_torchlib(opset_version=OPSET)


@_flags.set_onnx_exporting_flag
def traced(module: nn.Module, inputs: Mapping[str, Tensor], dynamic_shapes: Mapping[str, Any]) -> ExportedProgram:
    """The program of ``module``, which is called with ``inputs``, of operators that ONNX has.

    ``dynamic_shapes`` has the dynamic axes of each input, as for ``torch.export.export``.

    Raises:
        Exception: torch cannot trace the module; errors have many types.
    """
    shapes = {"inputs": dict(dynamic_shapes)}
    # torch prints the graph of a program that it cannot trace. stderr is not redirected, because the signal handler
    # writes to it, too. Filling the cache would take a third of the time.
    silent = _replaced(trace, "print", lambda *_, **__: None)
    with dynamo.patch(fake_tensor_cache_enabled=False), silent:
        result = TorchExportNonStrictStrategy(verbose=False)(module, (), {"inputs": dict(inputs)}, shapes)
    if result.exported_program is None:
        assert result.exception is not None
        raise result.exception
    with symbols.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # a size of 1 is like any other
        return _decomposed(result.exported_program)


def _decomposed(program: ExportedProgram) -> ExportedProgram:
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is DETACH:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is ASSERTION:
            graph.erase_node(node)
    program.graph_module.recompile()
    if not all(_is_functional(node.target) for part in _graphs(program.graph_module) for node in part.nodes):
        program = program.run_decompositions({})  # of operators that change a tensor in place
    retraced = _retraced(program.graph_module)
    # A decomposition may make a tensor, or change one in place (roll).
    if all(node.op != "get_attr" and _is_functional(node.target) for node in retraced.graph.nodes):
        return _with_graph(program, retraced)
    return _fx_passes.decompose_with_registry(program, operators())


def _graphs(module: fx.GraphModule) -> list[fx.Graph]:
    return [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]


def _is_functional(target: Any) -> bool:
    if isinstance(target, OpOverload):
        return not target._schema.is_mutable
    return not isinstance(target, HigherOrderOperator) or target is WITHOUT_GRADIENTS


@functools.cache
def _decompositions() -> tuple[dict[Any, Callable[..., Any]], ...]:
    """The functions that decompose operators: those that torch applies before tracing, and the others."""
    translated = set(_decomp.get_onnx_implemented_overloads(operators()))
    table: dict[Any, Callable[..., Any]] = dict(_decomp.create_onnx_friendly_decomposition_table(translated))
    table[torch.ops.aten.masked_scatter.default] = _rows_scattered
    table[torch.ops.aten.bucketize.Tensor] = _buckets
    table[torch.ops.aten.arange.start_step] = _fractions
    table[torch.ops.aten.rsub.Scalar] = _subtracted
    for operator in REDUCTIONS:
        table[operator] = functools.partial(_reduced, operator)
    table[torch.ops.aten.view_as_complex.default] = _complex
    table[torch.ops.aten.polar.default] = _polar
    for name, number in NEUTRAL.items():
        binary = getattr(torch.ops.aten, name).Tensor
        table[binary] = functools.partial(_almost_neutral, binary, number)
    return _split_decomp_table_to_cia_and_python_decomp(table)


def _rows_scattered(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``masked_scatter`` of whole rows: x [..., width], mask [..., 1].

    Masked rows beyond the last one of ``source``, which torch leaves undefined, are unchanged: ``source`` may be empty.
    """
    if mask.shape != (*x.shape[:-1], 1):
        return NotImplemented  # type: ignore[no-any-return]  # the exporter has another translation
    rows = source.reshape(-1, x.shape[-1])
    chosen = mask.reshape(-1)
    place = chosen.to(torch.int64).cumsum(0)  # counted from 1
    chosen = chosen & (place <= rows.shape[0])
    padded = torch.cat([rows.new_zeros(1, x.shape[-1]), rows])
    found = padded.index_select(0, torch.where(chosen, place, 0)).reshape(x.shape)
    return torch.where(chosen.reshape(mask.shape), found, x)


def _buckets(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """``bucketize``: the number of boundaries below x or, with ``right``, not above it.

    The exporter's binary search reads beyond the last boundary.
    """
    reached = x.unsqueeze(-1) >= boundaries if right else x.unsqueeze(-1) > boundaries
    return reached.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _fractions(start: Any, end: Any, step: Any = 1, **options: Any) -> Tensor:
    """``arange`` with non-integer steps: torch's own numbers, because ONNX's Range rounds differently."""
    if not any(isinstance(value, float) and not value.is_integer() for value in (start, end, step)):
        return NotImplemented  # type: ignore[no-any-return]
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        numbers = torch.arange(start, end, step, dtype=options.get("dtype")).tolist()
    if not 0 < len(numbers) <= MAX_FRACTIONS:
        return NotImplemented  # type: ignore[no-any-return]
    return torch.stack([torch.full((), number, dtype=options.get("dtype")) for number in numbers])


def _subtracted(x: Tensor, other: float, alpha: float = 1) -> Tensor:
    """``rsub``: ``other - x``. The exporter does not find the type of a number minus an integer tensor."""
    return torch.sub(torch.full((), other, dtype=torch.result_type(x, other)), x, alpha=alpha)


def _reduced(operator: OpOverload, x: Tensor, dim: Any, keepdim: bool = False, **options: Any) -> Tensor:
    """A reduction along axes counted from the first: if the last axis is given as -1 and is empty, the result of ONNX
    Runtime has the shape of ``x``."""
    axes = [dim] if isinstance(dim, int) else dim
    if keepdim or not axes or min(axes) >= 0:
        return NotImplemented  # type: ignore[no-any-return]
    counted = [axis % x.ndim for axis in axes]
    result: Tensor = operator(x, counted[0] if isinstance(dim, int) else counted, **options)
    return result


def _complex(pairs: Tensor) -> Tensor:
    """``view_as_complex``: a tensor whose operators are decomposed into those of its real and imaginary parts."""
    return ComplexTensor(*pairs.unbind(-1))


def _polar(absolute: Tensor, angle: Tensor) -> Tensor:
    return ComplexTensor(absolute * angle.cos(), absolute * angle.sin())


def _almost_neutral(operator: OpOverload, neutral: float, x: Tensor, other: Any, **options: Any) -> Tensor:
    """``x + 1e-8``, such as a norm's epsilon: the exporter's optimizer treats scalars this close to 0 or 1 as equal."""
    if not (isinstance(other, float) and other != neutral and math.isclose(other, neutral, rel_tol=1e-5, abs_tol=1e-8)):
        return NotImplemented  # type: ignore[no-any-return]
    if not (x.ndim and x.is_floating_point()):
        return NotImplemented  # type: ignore[no-any-return]
    result: Tensor = operator(x, torch.full((1,), other, dtype=x.dtype), **options)  # an array is kept
    return result


def _retraced(module: fx.GraphModule) -> fx.GraphModule:
    """The decomposed graph of ``module``, with inputs of the same names."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in inputs]
    mode = detect_fake_mode(values)
    assert mode is not None
    assert mode.shape_env is not None
    implicit, table = _decompositions()

    def run(*arguments: Any) -> Any:
        return _Interpreter(module).run(*arguments, enable_io_processing=False)

    preserved = _override_composite_implicit_decomp(implicit)
    with _ignore_backend_decomps(), enable_python_dispatcher(), mode, torch.no_grad(), preserved:
        retraced = make_fx(run, decomposition_table=table)(*values)
    retraced.graph.eliminate_dead_code()
    # It computes the sizes of inner tensors from those of the inputs.
    insert_deferred_runtime_asserts(retraced, mode.shape_env, "retraced", export=True)
    retraced.graph.eliminate_dead_code()
    for old, new in zip(inputs, [node for node in retraced.graph.nodes if node.op == "placeholder"], strict=True):
        new.name = new.target = old.name
        new.meta = dict(old.meta)
    retraced.recompile()
    retraced.meta.update(module.meta)
    return retraced


def _with_graph(program: ExportedProgram, module: fx.GraphModule) -> ExportedProgram:
    """``program`` with the graph of ``module``, whose outputs may have other names."""
    signature, nodes = program.graph_signature, module.graph.output_node().args[0]
    assert isinstance(nodes, (list, tuple))
    outputs = [
        replace(spec, arg=replace(spec.arg, name=node.name)) if isinstance(node, fx.Node) else spec
        for spec, node in zip(signature.output_specs, nodes, strict=True)
    ]
    return _Decomposed(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(signature.input_specs, outputs),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
    )
