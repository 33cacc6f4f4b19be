"""ONNX functions around ONNX Runtime's own fused attention; shapes as in ``export.kernels``."""

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
