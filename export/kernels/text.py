"""Parts that several ONNX function texts share. Each helper returns lines of ONNX's textual syntax.

In the texts, ``minus_one``, ``zero``, ``one`` ... are int64 tensors of shape [1], since ``Slice``, ``Reshape`` and
``Concat`` take such. The letters of dimensions are those of ``functions``; ``BK`` is the tensor [B, K].
"""

AXES = {"B": 0, "H": 1, "K": 1, "M": 2, "N": 2, "D": 3, "E": 3}  # of [B, H, M, D], [B, K, N, D] and [B, K, N, E]
CONSTANTS = {
    "minus_one": "value_ints = [-1]",
    "zero": "value_ints = [0]",
    "one": "value_ints = [1]",
    "two": "value_ints = [2]",
    "three": "value_ints = [3]",
    "seven": "value_ints = [7]",
    "eight": "value_ints = [8]",
    "true": "value = bool {1}",
    "float_zero": "value = float {0}",
    "minus_inf": "value = float {-inf}",
}


def constants(names: str) -> str:
    """Define constants of ``CONSTANTS``, named in one string with spaces between."""
    return "\n".join(f"{name} = Constant <{CONSTANTS[name]}> ()" for name in names.split())


def sizes(tensor: str, names: str, prefix: str = "") -> str:
    """Read dimensions of ``tensor`` from its shape: ``M`` is [M], ``BH`` is [B, H], as in ``AXES``.

    The results are named after the dimensions, with ``prefix`` before each name.
    """
    lines = []
    for name in names.split():
        start, end = AXES[name[0]], AXES[name[-1]] + 1
        attributes = f"start = {start}" + (f", end = {end}" if end < 4 else "")
        lines.append(f"{prefix}{name} = Shape <{attributes}> ({tensor})")
    return "\n".join(lines)


def each(tensors: str, line: str) -> str:
    """Repeat ``line`` for each of ``tensors``, whose name takes the place of ``@``."""
    return "\n".join(line.replace("@", tensor) for tensor in tensors.split())


def quotient(result: str, number: str, divisor: str) -> str:
    """Divide ``number`` by ``divisor``, rounded up, to ``result``; the text has ``one``."""
    return f"""
    {result}_sum = Add ({number}, {divisor})
    {result}_dividend = Sub ({result}_sum, one)
    {result} = Div ({result}_dividend, {divisor})
"""


def folded(key_rows: str, value_rows: str) -> str:
    """Reshape q, k and v to q3, k3 and v3 with three axes; the first, ``batch``, includes the heads.

    The other two are ``key_rows`` for q and k, and ``value_rows`` for v.
    """
    return f"""
    k_shape = Concat <axis = 0> (batch, {key_rows})
    v_shape = Concat <axis = 0> (batch, {value_rows})
    {each("q k", "@3 = Reshape (@, k_shape)")}
    v3 = Reshape (v, v_shape)
"""


def unfolded(output: str) -> str:
    """Reshape o3 to ``output`` [B, H, M, E], whatever queries were folded into its rows."""
    return f"""
    {sizes("q", "BHM")}
    o_shape = Concat <axis = 0> (BHM, E)
    {output} = Reshape (o3, o_shape)
"""


def real_keys(nonpad: str) -> str:
    """The number of real keys of each batch row, ``real``: that of ``nonpad``, or all N where it is negative."""
    return f"""
    not_given = Less ({nonpad}, zero)
    real = Where (not_given, N, {nonpad})
"""


def causal(square: str, full: str, first: str) -> str:
    """Causal attention for any numbers of queries and keys, by kernels that support fewer cases.

    ``square`` takes as many keys as queries and no groups; ``full`` masks nothing. ``fits`` says whether ``square``
    supports the inputs. If not, the lines ``first`` compute o_first: the output of the first L = min(M, N) queries,
    with the first L keys. No query attends to later keys, and later queries attend to all keys.
    """
    return f"""
    o = If (fits) <then_branch = as_they_are () => (o_fits) {{
        o_fits = {square} (q, k, v)
    }}, else_branch = in_parts () => (o_parts) {{
        {first}
        more_queries1 = Greater (M, N)
        more_queries = Squeeze (more_queries1)
        o_parts = If (more_queries) <then_branch = with_later () => (o_all) {{
            q_later = Slice (q, L, M, two)
            o_later = {full} (q_later, k, v)
            o_all = Concat <axis = 2> (o_first, o_later)
        }}, else_branch = without_later () => (o_only) {{
            o_only = Identity (o_first)
        }}>
    }}>
"""


def copied(source: str, grouped: str, ungrouped: str) -> str:
    """Copy the key heads of the tensors k ``source`` and v ``source`` for each query head of their group.

    ``grouped`` is the shape [B, K, G, L, width], ``ungrouped`` [B, H, L, width]; the results are k_copies and v_copies.
    """
    return "\n".join(
        [
            each("k v", f"@_group = Unsqueeze (@_{source}, two)"),
            each("k v", f"@_groups = Expand (@_group, {grouped})"),
            each("k v", f"@_copies = Reshape (@_groups, {ungrouped})"),
        ]
    )


def joined_blocks(heads: str) -> str:
    """Join the outputs of all blocks, o_blocks, to o_padded [B, H, blocks * rows, E].

    ``heads`` are the two dimensions whose product is H.
    """
    return f"""
    o6_shape = Concat <axis = 0> (B, blocks, {heads}, rows, E)
    o6 = Reshape (o_blocks, o6_shape)
    o6_heads = Transpose <perm = [0, 2, 3, 1, 4, 5]> (o6)
    o4_shape = Concat <axis = 0> (B, H, minus_one, E)
    o_padded = Reshape (o6_heads, o4_shape)
"""
