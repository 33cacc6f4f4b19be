"""The kernels of the fast paths, as ONNX functions of domain ``heed``: softmax(q k^T) v, the scores never held whole.

Queries are scaled before they come here. Shapes: B batch, H heads, K kv_heads (H is a multiple of K), M queries, N keys
with the past, D d_k, E d_v. A function is text, so that it reads as the graph it is, and is inlined when it is loaded.
"""

import onnx
from onnx import parser

DOMAIN = "heed"
OPSETS = {"": 20, "com.microsoft": 1, DOMAIN: 1}

# ONNX Runtime's fused attention, nothing masked. Heads are folded into the batch, so that their number is not fixed in
# the file; the queries of one key head lie next to each other, so grouped queries are only more rows.
FLASH = """
Flash (q, k, v) => (o) {
    BK = Shape <start = 0, end = 2> (k)
    folded = ReduceProd <keepdims = 1> (BK)
    rest = Constant <value_ints = [-1]> ()
    D = Shape <start = 3> (k)
    E = Shape <start = 3> (v)
    k_shape = Concat <axis = 0> (folded, rest, D)
    v_shape = Concat <axis = 0> (folded, rest, E)
    q3 = Reshape (q, k_shape)
    k3 = Reshape (k, k_shape)
    v3 = Reshape (v, v_shape)
    o3 = com.microsoft.MultiHeadAttention <num_heads = 1, scale = 1.0> (q3, k3, v3)
    BHM = Shape <start = 0, end = 3> (q)
    o_shape = Concat <axis = 0> (BHM, E)
    o = Reshape (o3, o_shape)
}
"""

# Each batch row alone, with the keys that are real and no others. A row without any is zero; it looks at one key, since
# the kernel cannot look at none.
PADDED = """
Padded (q, k, v, nonpad) => (o) {
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    yes = Constant <value = bool {1}> ()
    nothing = Constant <value = float {0}> ()
    N = Shape <start = 2, end = 3> (k)
    B = Shape <start = 0, end = 1> (q)
    rows = Squeeze (B)
    given = Expand (nonpad, B)
    rows_o = Loop (rows, yes) <body = row (int64 b, bool go) => (bool on, row_o) {
        on = Identity (go)
        from = Unsqueeze (b, zero)
        to = Add (from, one)
        said = Slice (given, from, to, zero)
        unsaid = Less (said, zero)
        real = Where (unsaid, N, said)
        looked = Max (real, one)
        row_q = Slice (q, from, to, zero)
        row_k0 = Slice (k, from, to, zero)
        row_v0 = Slice (v, from, to, zero)
        row_k = Slice (row_k0, zero, looked, two)
        row_v = Slice (row_v0, zero, looked, two)
        found = heed.Flash (row_q, row_k, row_v)
        some = Greater (real, zero)
        kept = Where (some, found, nothing)
        row_o = Squeeze (kept, zero)
    }>
    o = Identity (rows_o)
}
"""

# As many queries as keys, as wide as the values, no groups: ONNX Runtime's fused causal attention.
SQUARE = """
Square (q, k, v) => (o) {
    o_shape = Shape (q)
    BH = Shape <start = 0, end = 2> (q)
    MD = Shape <start = 2> (q)
    M = Shape <start = 2, end = 3> (q)
    folded = ReduceProd <keepdims = 1> (BH)
    shape3 = Concat <axis = 0> (folded, MD)
    one = Constant <value_ints = [1]> ()
    q3 = Reshape (q, shape3)
    k3 = Reshape (k, shape3)
    v3 = Reshape (v, shape3)
    last = Sub (M, one)
    last32 = Cast <to = 6> (last)
    lasts = Expand (last32, folded)
    total = Cast <to = 6> (M)
    o3, present_k, present_v = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, scale = 1.0>
        (q3, k3, v3, , , lasts, total)
    o = Reshape (o3, o_shape)
}
"""

# Causal. Keys past the last query are seen by none, queries past the last key see all; zeros up to a common width that
# is a multiple of 8, which the fused kernel wants, change no product; grouped queries get copies of their keys.
CAUSAL = """
Causal (q, k, v) => (o) {
    zero = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()
    three = Constant <value_ints = [3]> ()
    seven = Constant <value_ints = [7]> ()
    eight = Constant <value_ints = [8]> ()
    M = Shape <start = 2, end = 3> (q)
    N = Shape <start = 2, end = 3> (k)
    D = Shape <start = 3> (q)
    E = Shape <start = 3> (v)
    square = Equal (M, N)
    as_wide = Equal (D, E)
    over = Mod (D, eight)
    whole = Equal (over, zero)
    B = Shape <start = 0, end = 1> (k)
    K = Shape <start = 1, end = 2> (k)
    H = Shape <start = 1, end = 2> (q)
    alone = Equal (H, K)
    both = And (square, as_wide)
    all_three = And (both, whole)
    fits1 = And (all_three, alone)
    fits = Squeeze (fits1)
    o = If (fits) <then_branch = as_it_is () => (o_fits) {
        o_fits = heed.Square (q, k, v)
    }, else_branch = cut () => (o_cut) {
        L = Min (M, N)
        wider = Max (D, E)
        up = Add (wider, seven)
        eighths = Div (up, eight)
        width = Mul (eighths, eight)
        pad_d = Sub (width, D)
        pad_e = Sub (width, E)
        pads_d = Concat <axis = 0> (zero, pad_d)
        pads_e = Concat <axis = 0> (zero, pad_e)
        q_cut = Slice (q, zero, L, two)
        k_cut = Slice (k, zero, L, two)
        v_cut = Slice (v, zero, L, two)
        q_wide = Pad (q_cut, pads_d, , three)
        k_wide = Pad (k_cut, pads_d, , three)
        v_wide = Pad (v_cut, pads_e, , three)
        G = Div (H, K)
        grouped = Concat <axis = 0> (B, K, G, L, width)
        each = Concat <axis = 0> (B, H, L, width)
        k_group = Unsqueeze (k_wide, two)
        v_group = Unsqueeze (v_wide, two)
        k_copied = Expand (k_group, grouped)
        v_copied = Expand (v_group, grouped)
        k_each = Reshape (k_copied, each)
        v_each = Reshape (v_copied, each)
        o_wide = heed.Square (q_wide, k_each, v_each)
        o_seen = Slice (o_wide, zero, E, three)
        more1 = Greater (M, N)
        more = Squeeze (more1)
        o_cut = If (more) <then_branch = rest () => (o_all) {
            q_rest = Slice (q, L, M, two)
            o_rest = heed.Flash (q_rest, k, v)
            o_all = Concat <axis = 2> (o_seen, o_rest)
        }, else_branch = none () => (o_only) {
            o_only = Identity (o_seen)
        }>
    }>
}
"""

# Every option, by blocks of ROWS queries: each block looks at its own range of keys, all others being masked for it, so
# causal and windowed attention cost what is seen. The last block overlaps the one before, so that all are alike.
BLOCKS = """
Blocks (q, k, v, mask, causal, left, right, softcap, nonpad, past) => (o) {
    minus = Constant <value_ints = [-1]> ()
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    two = Constant <value_ints = [2]> ()
    head_axes = Constant <value_ints = [0, 1, 2]> ()
    query_axes = Constant <value_ints = [0, 1, 3]> ()
    mask_axes = Constant <value_ints = [0, 2, 3]> ()
    step = Constant <value_int = 1> ()
    most = Constant <value_ints = [ROWS]> ()
    far = Constant <value_ints = [1073741824]> ()
    yes = Constant <value = bool {1}> ()
    nought = Constant <value = float {0}> ()
    forbidden = Constant <value = float {-inf}> ()
    no_band = Constant <value = float[1, 1] {0}> ()
    B = Shape <start = 0, end = 1> (q)
    H = Shape <start = 1, end = 2> (q)
    M = Shape <start = 2, end = 3> (q)
    D = Shape <start = 3> (q)
    K = Shape <start = 1, end = 2> (k)
    N = Shape <start = 2, end = 3> (k)
    E = Shape <start = 3> (v)
    G = Div (H, K)
    grouped = Concat <axis = 0> (B, K, G, M, D)
    q5 = Reshape (q, grouped)
    key_heads = Squeeze (K)

    rows = Min (M, most)
    up = Add (M, rows)
    up1 = Sub (up, one)
    blocks = Div (up1, rows)
    first_of_last = Sub (M, rows)

    nonpads = Expand (nonpad, B)
    left1 = Reshape (left, one)
    right1 = Reshape (right, one)
    causal1 = Reshape (causal, one)
    past1 = Reshape (past, one)
    any_left = Less (left1, zero)
    any_right = Less (right1, zero)
    back = Where (any_left, far, left1)
    ahead_window = Where (any_right, far, right1)
    ahead_causal = Min (ahead_window, zero)
    ahead = Where (causal1, ahead_causal, ahead_window)
    minus_back = Neg (back)
    back32 = Cast <to = 6> (minus_back)
    ahead32 = Cast <to = 6> (ahead)
    both = Min (back, ahead)
    banded_all = Less (both, far)
    capped1 = Greater (softcap, nought)
    is_capped = Squeeze (capped1)

    mask_B = Shape <start = 0, end = 1> (mask)
    mask_H = Shape <start = 1, end = 2> (mask)
    mask_M = Shape <start = 2, end = 3> (mask)
    mask_N = Shape <start = 3> (mask)
    mask_last = Sub (mask_B, one)
    each_head = Greater (mask_H, one)
    each_row = Greater (mask_M, one)
    each_key = Greater (mask_N, one)

    times = Mul (B, blocks)
    trips = Squeeze (times)
    blocks_o = Loop (trips, yes) <body = block (int64 t, bool go) => (bool on, block_o) {
        on = Identity (go)
        t1 = Reshape (t, one)
        b = Div (t1, blocks)
        b_to = Add (b, one)
        nth = Mod (t1, blocks)
        from0 = Mul (nth, rows)
        from = Min (from0, first_of_last)
        to = Add (from, rows)

        said = Slice (nonpads, b, b_to, zero)
        unsaid = Less (said, zero)
        real = Where (unsaid, N, said)
        aligned = Sub (said, M)
        offset = Where (unsaid, past1, aligned)
        first = Add (from, offset)
        last = Add (to, offset)
        lo0 = Sub (first, back)
        lo1 = Max (lo0, zero)
        N1 = Sub (N, one)
        lo = Min (lo1, N1)
        hi0 = Add (last, ahead)
        hi1 = Min (hi0, real)
        some = Add (lo, one)
        hi = Max (hi1, some)

        nobody = Less (real, one)
        banded1 = Or (banded_all, nobody)
        is_banded = Squeeze (banded1)
        band = If (is_banded) <then_branch = draw () => (drawn) {
            first0 = Squeeze (first)
            last0 = Squeeze (last)
            lo_0 = Squeeze (lo)
            hi_0 = Squeeze (hi)
            i = Range (first0, last0, step)
            j = Range (lo_0, hi_0, step)
            i32 = Cast <to = 6> (i)
            j32 = Cast <to = 6> (j)
            i_col = Unsqueeze (i32, one)
            ahead_by = Sub (j32, i_col)
            not_after = LessOrEqual (ahead_by, ahead32)
            not_before = GreaterOrEqual (ahead_by, back32)
            is_real = Less (j, real)
            near = And (not_after, not_before)
            seen = And (near, is_real)
            drawn = Where (seen, nought, forbidden)
        }, else_branch = open () => (opened) {
            opened = Identity (no_band)
        }>

        mask_b = Min (b, mask_last)
        mask_b_to = Add (mask_b, one)
        mask_i = Where (each_row, from, zero)
        mask_i_to = Where (each_row, to, one)
        mask_j = Where (each_key, lo, zero)
        mask_j_to = Where (each_key, hi, one)
        mask_from = Concat <axis = 0> (mask_b, mask_i, mask_j)
        mask_to = Concat <axis = 0> (mask_b_to, mask_i_to, mask_j_to)
        mask_block = Slice (mask, mask_from, mask_to, mask_axes)
        bias = Add (mask_block, band)
        top = ReduceMax <keepdims = 1> (bias, minus)
        nothing = Equal (top, forbidden)

        heads_o = Loop (key_heads, yes) <body = head (int64 h, bool h_go) => (bool h_on, head_o) {
            h_on = Identity (h_go)
            h1 = Reshape (h, one)
            h_to = Add (h1, one)
            q_from = Concat <axis = 0> (b, h1, from)
            q_to = Concat <axis = 0> (b_to, h_to, to)
            k_from = Concat <axis = 0> (b, h1, lo)
            k_to = Concat <axis = 0> (b_to, h_to, hi)
            q_block = Slice (q5, q_from, q_to, query_axes)
            k_block = Slice (k, k_from, k_to, head_axes)
            v_block = Slice (v, k_from, k_to, head_axes)
            wide = Concat <axis = 0> (minus, D)
            deep = Concat <axis = 0> (minus, E)
            q2 = Reshape (q_block, wide)
            k2 = Reshape (k_block, wide)
            v2 = Reshape (v_block, deep)
            scores2 = com.microsoft.FusedMatMul <transB = 1> (q2, k2)
            four = Concat <axis = 0> (one, G, rows, minus)
            scores4 = Reshape (scores2, four)
            scores = If (is_capped) <then_branch = cap () => (capped) {
                part = Div (scores4, softcap)
                bent = Tanh (part)
                capped = Mul (bent, softcap)
            }, else_branch = uncapped () => (as_is) {
                as_is = Identity (scores4)
            }>
            g_from0 = Mul (h1, G)
            g_to0 = Add (g_from0, G)
            g_from = Where (each_head, g_from0, zero)
            g_to = Where (each_head, g_to0, one)
            head_bias = Slice (bias, g_from, g_to, one)
            head_nothing = Slice (nothing, g_from, g_to, one)
            masked = Add (scores, head_bias)
            weights = Softmax <axis = -1> (masked)
            keys = Sub (hi, lo)
            flat = Concat <axis = 0> (minus, keys)
            weights2 = Reshape (weights, flat)
            found2 = MatMul (weights2, v2)
            found_shape = Concat <axis = 0> (one, G, rows, E)
            found = Reshape (found2, found_shape)
            kept = Where (head_nothing, nought, found)
            head_o = Squeeze (kept, zero)
        }>
        block_o = Identity (heads_o)
    }>
    six = Concat <axis = 0> (B, blocks, K, G, rows, E)
    o6 = Reshape (blocks_o, six)
    o6_heads = Transpose <perm = [0, 2, 3, 1, 4, 5]> (o6)
    four_o = Concat <axis = 0> (B, H, minus, E)
    o_over = Reshape (o6_heads, four_o)
    over = Shape <start = 2, end = 3> (o_over)
    whole_blocks = Sub (over, rows)
    left_over = Sub (M, whole_blocks)
    tail_from = Sub (over, left_over)
    o_whole = Slice (o_over, zero, whole_blocks, two)
    o_tail = Slice (o_over, tail_from, over, two)
    o = Concat <axis = 2> (o_whole, o_tail)
}
"""
ROWS = 128  # queries a block: fewer cost more copies of keys, more fall out of the cache

_TEXTS = {"Flash": FLASH, "Padded": PADDED, "Square": SQUARE, "Causal": CAUSAL, "Blocks": BLOCKS}
_CALLS = {"Padded": ("Flash",), "Causal": ("Square", "Flash")}


def functions(kernel: str) -> list[onnx.FunctionProto]:
    """``kernel`` and the functions it calls."""
    opsets = ", ".join(f'"{domain}" : {version}' for domain, version in OPSETS.items())
    head = f'<opset_import: [{opsets}], domain: "{DOMAIN}">'
    texts = (_TEXTS[name].replace("ROWS", str(ROWS)) for name in (*_CALLS.get(kernel, ()), kernel))
    return [parser.parse_function(head + text) for text in texts]
