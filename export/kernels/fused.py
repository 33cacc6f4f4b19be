"""ONNX functions around ONNX Runtime's own fused attention; shapes as in ``functions``."""

from export.kernels.text import causal, constants, copied, each, folded, quotient, real_keys, sizes, unfolded

# ONNX Runtime ends a run between two nodes. So a kernel that would take more than half a second is called in a loop,
# with several heads, or with some of the queries of one head. A pair of query and key takes as long as D + E + PAIR
# multiply-adds: MOST of them some 0.6 seconds, PART a quarter of it.
PAIR, MOST, PART, LEAST_ROWS = 64, 1 << 35, 1 << 33, 128


def _is_short(queries: str, keys: str, query_width: str, value_width: str) -> str:
    """The lines that compute ``is_short`` [1]: whether one call of the kernel takes little time.

    ``queries`` is their number over batch and heads. ``pair_work`` is the multiply-adds that a pair takes.
    """
    return f"""
    pair = Constant <value_ints = [{PAIR}]> ()
    most = Constant <value_ints = [{MOST}]> ()
    widths = Add ({query_width}, {value_width})
    pair_work = Add (widths, pair)
    pairs = Mul ({queries}, {keys})
    work = Mul (pairs, pair_work)
    is_short = LessOrEqual (work, most)
"""


def _in_parts(kernel: str) -> str:
    """The lines that compute o_parts [batch, M, E] from q3, k3 and v3 in parts: of heads, or of a head's queries.

    ``kernel`` are those that compute o_part from q_part, k_heads and v_heads, with the indices ``at`` of the part's
    queries, which begin at ``from``, and ``is_whole``: whether each part has all queries. The last part is filled with
    copies of the last head or query.
    """
    return f"""
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        part = Constant <value_ints = [{PART}]> ()
        least_rows = Constant <value_ints = [{LEAST_ROWS}]> ()
        row_work = Mul (N, pair_work)
        head_work = Mul (M, row_work)
        heads_by_work = Div (part, head_work)
        rows_by_work = Div (part, row_work)
        most_heads = Max (heads_by_work, one)
        most_rows = Max (rows_by_work, least_rows)
        {quotient("head_parts", "batch", "most_heads")}
        {quotient("heads", "batch", "head_parts")}
        {quotient("row_parts", "M", "most_rows")}
        {quotient("rows", "M", "row_parts")}
        is_whole1 = Equal (row_parts, one)
        is_whole = Squeeze (is_whole1)
        last_head = Sub (batch, one)
        last_query = Sub (M, one)
        {each("heads rows", "@_0 = Squeeze (@)")}
        {each("heads rows", "@_range = Range (first, @_0, step)")}
        part_count = Mul (head_parts, row_parts)
        trips = Squeeze (part_count)
        o_of_parts = Loop (trips, true) <body = part_of_both (int64 t, bool go) => (bool on, o_part) {{
            on = Identity (go)
            t1 = Reshape (t, one)
            head_part = Div (t1, row_parts)
            row_part = Mod (t1, row_parts)
            head_from = Mul (head_part, heads)
            head_or_beyond = Add (head_from, heads_range)
            head_at = Min (head_or_beyond, last_head)
            from = Mul (row_part, rows)
            row_or_beyond = Add (from, rows_range)
            at = Min (row_or_beyond, last_query)
            {each("q k v", "@_heads = Gather (@3, head_at)")}
            q_part = Gather <axis = 1> (q_heads, at)
            {kernel}
        }}>
        all_heads = Mul (head_parts, heads)
        all_rows = Mul (row_parts, rows)
        o_shape3 = Concat <axis = 0> (all_heads, all_rows, E)
        o_padded = Reshape (o_of_parts, o_shape3)
        o_from = Concat <axis = 0> (zero, zero)
        o_to = Concat <axis = 0> (batch, M)
        o_parts = Slice (o_padded, o_from, o_to)
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


_KERNEL = "com.microsoft.MultiHeadAttention <num_heads = 1, scale = 1.0>"
FLASH = flash(
    "Flash",
    f"""
    {sizes("k", "N")}
    M = Shape <start = 1, end = 2> (q3)
    queries = Mul (batch, M)
    {_is_short("queries", "N", "D", "E")}
    at_once = Squeeze (is_short)
    o3 = If (at_once) <then_branch = one_call () => (o_whole) {{
        o_whole = {_KERNEL} (q3, k3, v3)
    }}, else_branch = in_parts () => (o_parts) {{
        {constants("zero one true")}
        {_in_parts(f"o_part = {_KERNEL} (q_part, k_heads, v_heads)")}
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

# ONNX Runtime's fused causal attention: as many queries as keys, as wide as the values, no groups.
_FOLDED_SQUARE = f"""
    o_shape = Shape (q)
    {sizes("q", "BH MD M")}
    batch = ReduceProd <keepdims = 1> (BH)
    shape3 = Concat <axis = 0> (batch, MD)
    {each("q k v", "@3 = Reshape (@, shape3)")}
"""
_SQUARE_KERNEL = "com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, scale = 1.0>"
_LAST_KEYS = """
    last = Sub (M, one)
    last32 = Cast <to = 6> (last)
    last_keys = Expand (last32, {batch})
    total = Cast <to = 6> (M)
"""
SQUARE = f"""
Square (q, k, v) => (o) {{
    {_FOLDED_SQUARE}
    {constants("one")}
    {_LAST_KEYS.format(batch="batch")}
    o3, present_k, present_v = {_SQUARE_KERNEL} (q3, k3, v3, , , last_keys, total)
    o = Reshape (o3, o_shape)
}}
"""

# The same, in parts where one call would take long. Some of a head's queries have the keys before them as their past,
# which the kernel supports for one head at a time.
_SQUARE_PART = f"""
            o_part = If (is_whole) <then_branch = whole_heads () => (o_heads) {{
                {_LAST_KEYS.format(batch="heads")}
                o_heads, present_k, present_v = {_SQUARE_KERNEL} (q_part, k_heads, v_heads, , , last_keys, total)
            }}, else_branch = some_queries () => (o_queries) {{
                {each("k v", "@_part = Gather <axis = 1> (@_heads, at)")}
                {each("k v", "@_before = Slice (@_heads, zero, from, one)")}
                {each("k v", "@_past = Unsqueeze (@_before, one)")}
                to = Add (from, rows)
                total_to = Cast <to = 6> (to)
                last_to = Sub (to, one)
                last_key = Cast <to = 6> (last_to)
                o_queries, present_k_to, present_v_to = {_SQUARE_KERNEL}
                    (q_part, k_part, v_part, k_past, v_past, last_key, total_to)
            }}>
"""
LONG_SQUARE = f"""
LongSquare (q, k, v) => (o) {{
    {_FOLDED_SQUARE}
    {sizes("q", "D")}
    queries = Mul (batch, M)
    {_is_short("queries", "M", "D", "D")}
    at_once = Squeeze (is_short)
    o = If (at_once) <then_branch = one_call () => (o_short) {{
        o_short = heed.Square (q, k, v)
    }}, else_branch = in_parts () => (o_long) {{
        N = Identity (M)
        E = Identity (D)
        {constants("zero one true")}
        {_in_parts(_SQUARE_PART)}
        o_long = Reshape (o_parts, o_shape)
    }}>
}}
"""

# Causal attention of any sizes by LongSquare. The fused kernel wants one width for keys and values, a multiple of 8:
# columns of zeros are added up to it, which change no product. Grouped queries get copies of their keys.
_FIRST = f"""
    {constants("two three seven")}
    {sizes("q", "H M D")}
    {sizes("k", "B K N")}
    {sizes("v", "E")}
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
    o_wide = heed.LongSquare (q_wide, k_copies, v_copies)
    o_first = Slice (o_wide, zero, E, three)
"""

CAUSAL = f"""
Causal (q, k, v) => (o) {{
    {constants("zero eight")}
    q_HMD = Shape <start = 1> (q)
    v_KNE = Shape <start = 1> (v)
    fits_HMD = Equal (q_HMD, v_KNE)
    q_width = Shape <start = 3> (q)
    remainder = Mod (q_width, eight)
    is_multiple_of_8 = Equal (remainder, zero)
    {sizes("q", "BHM")}
    q_rows = ReduceProd <keepdims = 1> (BHM)
    k_rows = Shape <start = 2, end = 3> (k)
    {_is_short("q_rows", "k_rows", "q_width", "q_width")}
    all_fits = Concat <axis = 0> (fits_HMD, is_multiple_of_8, is_short)
    fits = ReduceMin <keepdims = 0> (all_fits)
    {causal("heed.Square", "heed.Flash", _FIRST)}
}}
"""
