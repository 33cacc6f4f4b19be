"""ONNX functions around ONNX Runtime's own fused attention; shapes as in ``functions``."""

from export.kernels.text import causal, constants, copied, each, folded, real_keys, sizes, unfolded


def flash(signature: str, scale: str) -> str:
    """ONNX Runtime's fused attention without a mask.

    Heads are folded into the batch, so that their number is not fixed in the file. The queries of one key head lie next
    to each other, so grouped queries are only more rows.
    """
    return f"""
{signature} (q, k, v) => (o) {{
    {sizes("k", "BK")}
    batch = ReduceProd <keepdims = 1> (BK)
    {constants("minus_one")}
    {sizes("k", "D")}
    {sizes("v", "E")}
    {folded("minus_one, D", "minus_one, E")}
    o3 = com.microsoft.MultiHeadAttention <num_heads = 1, {scale}> (q3, k3, v3)
    {unfolded("o")}
}}
"""


FLASH = flash("Flash", "scale = 1.0")

# A loop over batch rows, each with its real keys only. A row without real keys is zero: it is run with one key, since
# the kernel takes no empty tensor, and its result is replaced.
PADDED = f"""
Padded (q, k, v, nonpad) => (o) {{
    {constants("zero one two true float_zero")}
    {sizes("k", "N")}
    {sizes("q", "B")}
    trips = Squeeze (B)
    nonpads = Expand (nonpad, B)
    o_rows = Loop (trips, true) <body = row (int64 b, bool go) => (bool on, o_row) {{
        on = Identity (go)
        from = Unsqueeze (b, zero)
        to = Add (from, one)
        nonpad_b = Slice (nonpads, from, to, zero)
        {real_keys("nonpad_b")}
        key_count = Max (real, one)
        {each("q k v", "@_row = Slice (@, from, to, zero)")}
        {each("k v", "@_real = Slice (@_row, zero, key_count, two)")}
        o_any = heed.Flash (q_row, k_real, v_real)
        has_keys = Greater (real, zero)
        o_or_zero = Where (has_keys, o_any, float_zero)
        o_row = Squeeze (o_or_zero, zero)
    }}>
    o = Identity (o_rows)
}}
"""

# ONNX Runtime's fused causal attention: as many queries as keys, as wide as the values, no groups.
SQUARE = f"""
Square (q, k, v) => (o) {{
    o_shape = Shape (q)
    {sizes("q", "BH MD M")}
    batch = ReduceProd <keepdims = 1> (BH)
    shape3 = Concat <axis = 0> (batch, MD)
    {constants("one")}
    {each("q k v", "@3 = Reshape (@, shape3)")}
    last = Sub (M, one)
    last32 = Cast <to = 6> (last)
    last_keys = Expand (last32, batch)
    total = Cast <to = 6> (M)
    o3, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, scale = 1.0>
        (q3, k3, v3, , , last_keys, total)
    o = Reshape (o3, o_shape)
}}
"""

# Causal attention by Square. The fused kernel wants one width for keys and values, a multiple of 8: columns of zeros
# are added up to it, which change no product. Grouped queries get copies of their keys.
_FIRST = f"""
    L = Min (M, N)
    wider = Max (D, E)
    wider_plus_7 = Add (wider, seven)
    eighths = Div (wider_plus_7, eight)
    width = Mul (eighths, eight)
    pad_d = Sub (width, D)
    pad_e = Sub (width, E)
    pads_d = Concat <axis = 0> (zero, pad_d)
    pads_e = Concat <axis = 0> (zero, pad_e)
    {each("q k v", "@_first = Slice (@, zero, L, two)")}
    {each("q k", "@_wide = Pad (@_first, pads_d, , three)")}
    v_wide = Pad (v_first, pads_e, , three)
    G = Div (H, K)
    grouped = Concat <axis = 0> (B, K, G, L, width)
    ungrouped = Concat <axis = 0> (B, H, L, width)
    {copied("wide", "grouped", "ungrouped")}
    o_wide = heed.Square (q_wide, k_copies, v_copies)
    o_first = Slice (o_wide, zero, E, three)
"""

CAUSAL = f"""
Causal (q, k, v) => (o) {{
    {constants("zero two three seven eight")}
    {sizes("q", "M")}
    {sizes("k", "N")}
    {sizes("q", "D")}
    {sizes("v", "E")}
    as_many = Equal (M, N)
    as_wide = Equal (D, E)
    remainder = Mod (D, eight)
    multiple_of_8 = Equal (remainder, zero)
    {sizes("k", "B K")}
    {sizes("q", "H")}
    no_groups = Equal (H, K)
    fits2 = And (as_many, as_wide)
    fits3 = And (fits2, multiple_of_8)
    fits4 = And (fits3, no_groups)
    fits = Squeeze (fits4)
    {causal("heed.Square", "heed.Flash", _FIRST)}
}}
"""
