"""ONNX functions that multiply each row with the matrix of its expert; shapes: S rows, E experts.

x [S, in] and ``experts`` [S], sorted, with ``weight`` [E, out, in] or, transposed, [E, in, out] -> y [S, out]. A loop
over the experts that occur reads the matrix of each once, instead of copying it for each row.
"""

from export.kernels.text import constants


def experts(name: str, is_transposed: bool) -> str:
    """The function ``name``."""
    return f"""
{name} (x, experts, weight) => (y) {{
    {constants("zero true")}
    chosen, first, , counts = Unique <axis = 0> (experts)
    end = Add (first, counts)
    chosen_count = Size (chosen)
    none = SequenceEmpty <dtype = 1> ()
    parts = Loop (chosen_count, true, none) <body = expert (int64 i, bool go, seq(float[]) kept) => (bool on, longer) {{
        on = Identity (go)
        i1 = Unsqueeze (i, zero)
        from = Gather (first, i1)
        to = Gather (end, i1)
        rows = Slice (x, from, to, zero)
        index = Gather (chosen, i)
        matrix = Gather (weight, index)
        products = Gemm <transB = {int(not is_transposed)}> (rows, matrix)
        longer = SequenceInsert (kept, products)
    }}>
    y = ConcatFromSequence <axis = 0> (parts)
}}
"""


EXPERTS, EXPERTS_TRANSPOSED = experts("Experts", False), experts("ExpertsTransposed", True)
