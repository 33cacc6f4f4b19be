"""ONNX functions around ONNX Runtime's own fused attention; shapes as in ``functions``."""

from export.kernels.text import causal, constants, copied, each, folded, real_keys, sizes, unfolded

# ONNX Runtime ends a run between two nodes. So a kernel of more multiply-adds than MOST_PRODUCTS, which take half a
# second or more, is called in a loop: for each head, with as many queries as have PART_PRODUCTS with all keys. Many
# heads of at most FEW_KEYS are passed at once: a loop over them would take as long as the kernel.
MOST_PRODUCTS, PART_PRODUCTS, LEAST_ROWS, FEW_KEYS = 1 << 33, 1 << 32, 128, 1 << 10


def _few_products(query: str) -> str:
    """The lines that compute has_few_products [1]: whether ``query`` and N keys have at most MOST_PRODUCTS."""
    return f"""
    most_products = Constant <value_ints = [{MOST_PRODUCTS}]> ()
    numbers = Size ({query})
    products = Mul (numbers, N)
    has_few_products = LessOrEqual (products, most_products)
"""


_IS_SHORT = f"""
    few_keys = Constant <value_ints = [{FEW_KEYS}]> ()
    has_few_keys = LessOrEqual (N, few_keys)
    is_short1 = Or (has_few_products, has_few_keys)
    is_short = Squeeze (is_short1)
"""


def _in_parts(kernel: str) -> str:
    """The lines that compute o_parts [batch, M, E] from q3, k3 and v3 in parts of the queries of each head.

    ``kernel`` are those that compute o_part from q_part, k_head and v_head, with the indices ``at`` of the part's
    queries, which begin at ``from``. The last part is filled with copies of the last query.
    """
    return f"""
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        part_products = Constant <value_ints = [{PART_PRODUCTS}]> ()
        least_rows = Constant <value_ints = [{LEAST_ROWS}]> ()
        row_products = Mul (N, D)
        rows_by_products = Div (part_products, row_products)
        most_rows = Max (rows_by_products, least_rows)
        rows = Min (most_rows, M)
        M_plus_rows = Add (M, rows)
        M_rounded_up = Sub (M_plus_rows, one)
        parts = Div (M_rounded_up, rows)
        last_query = Sub (M, one)
        rows_0 = Squeeze (rows)
        row = Range (first, rows_0, step)
        part_count = Mul (batch, parts)
        trips = Squeeze (part_count)
        o_of_parts = Loop (trips, true) <body = part (int64 t, bool go) => (bool on, o_part) {{
            on = Identity (go)
            t1 = Reshape (t, one)
            head = Div (t1, parts)
            part_of_head = Mod (t1, parts)
            from = Mul (part_of_head, rows)
            row_or_beyond = Add (from, row)
            at = Min (row_or_beyond, last_query)
            {each("q k v", "@_head = Gather (@3, head)")}
            q_part = Gather <axis = 1> (q_head, at)
            {kernel}
        }}>
        o_shape3 = Concat <axis = 0> (batch, minus_one, E)
        o_padded = Reshape (o_of_parts, o_shape3)
        o_parts = Slice (o_padded, zero, M, one)
"""


def flash(signature: str, kernel: str) -> str:
    """Attention without a mask. ``kernel`` are the lines that compute o3 from q3, k3 and v3.

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
    {kernel}
    {unfolded("o")}
}}
"""


_CAUSAL_KERNEL = "com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, scale = 1.0>"
_CAUSAL_PART = f"""
            {each("k v", "@_part = Gather <axis = 1> (@_head, at)")}
            {each("k v", "@_before = Slice (@_head, zero, from, one)")}
            {each("k v", "@_past = Unsqueeze (@_before, one)")}
            to = Add (from, rows)
            total = Cast <to = 6> (to)
            last = Sub (to, one)
            last_key = Cast <to = 6> (last)
            o_part, present_k, present_v = {_CAUSAL_KERNEL}
                (q_part, k_part, v_part, k_past, v_past, last_key, total)
"""
_KERNEL = "com.microsoft.MultiHeadAttention <num_heads = 1, scale = 1.0>"
FLASH = flash(
    "Flash",
    f"""
    {sizes("k", "N")}
    {_few_products("q3")}
    {_IS_SHORT}
    o3 = If (is_short) <then_branch = at_once () => (o_whole) {{
        o_whole = {_KERNEL} (q3, k3, v3)
    }}, else_branch = in_parts () => (o_parts) {{
        M = Shape <start = 1, end = 2> (q3)
        {constants("zero one true")}
        {_in_parts(f"o_part = {_KERNEL} (q_part, k_head, v_head)")}
    }}>
""",
)

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

# ONNX Runtime's fused causal attention: as many queries as keys, as wide as the values, no groups. Queries of a part
# have the keys before them as their past.
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
    o3, present_k, present_v = {_CAUSAL_KERNEL}
        (q3, k3, v3, , , last_keys, total)
    o = Reshape (o3, o_shape)
}}
"""
LONG_SQUARE = f"""
LongSquare (q, k, v) => (o) {{
    o_shape = Shape (q)
    {sizes("q", "BH MD M")}
    N = Identity (M)
    {sizes("q", "D")}
    {sizes("v", "E")}
    batch = ReduceProd <keepdims = 1> (BH)
    shape3 = Concat <axis = 0> (batch, MD)
    {each("q k v", "@3 = Reshape (@, shape3)")}
    {constants("minus_one zero one true")}
    {_in_parts(_CAUSAL_PART)}
    o = Reshape (o_parts, o_shape)
}}
"""

# Causal attention by Square, or LongSquare. The fused kernel wants one width for keys and values, a multiple of 8:
# columns of zeros are added up to it, which change no product. Grouped queries get copies of their keys.
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
    {_IS_SHORT}
    o_wide = If (is_short) <then_branch = short () => (o_short) {{
        o_short = heed.Square (q_wide, k_copies, v_copies)
    }}, else_branch = long () => (o_long) {{
        o_long = heed.LongSquare (q_wide, k_copies, v_copies)
    }}>
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
    {_few_products("q")}
    fits2 = And (as_many, as_wide)
    fits3 = And (fits2, multiple_of_8)
    fits4 = And (fits3, no_groups)
    fits5 = And (fits4, has_few_products)
    fits = Squeeze (fits5)
    {causal("heed.Square", "heed.Flash", _FIRST)}
}}
"""
