"""An ONNX function that attends by blocks of queries; shapes as in ``functions``."""

from export.kernels.text import constants, each, joined_blocks, quotient, real_keys, sizes

ROWS = 128  # queries of a block: with fewer, keys are copied more often; with more, scores do not fit the cache

# Takes every option. Each block of ROWS queries computes only its own range of keys, since all other keys are masked
# for it: the cost of causal and windowed attention is that of the keys attended to. All blocks have the same number of
# rows: the last one overlaps the one before. An unlimited window is 2^30, as distances are compared in int32.
BLOCKS = f"""
Blocks (q, k, v, mask, causal, left, right, softcap, nonpad, past) => (o) {{
    {constants("minus_one zero one two")}
    head_axes = Constant <value_ints = [0, 1, 2]> ()
    query_axes = Constant <value_ints = [0, 1, 3]> ()
    mask_axes = Constant <value_ints = [0, 2, 3]> ()
    step = Constant <value_int = 1> ()
    max_rows = Constant <value_ints = [{ROWS}]> ()
    unlimited = Constant <value_ints = [{1 << 30}]> ()
    {constants("true float_zero minus_inf")}
    no_band = Constant <value = float[1, 1] {{0}}> ()
    {sizes("q", "B H M D")}
    {sizes("k", "K N")}
    {sizes("v", "E")}
    G = Div (H, K)
    q5_shape = Concat <axis = 0> (B, K, G, M, D)
    q5 = Reshape (q, q5_shape)
    key_heads = Squeeze (K)

    rows = Min (M, max_rows)
    {quotient("blocks", "M", "rows")}
    last_start = Sub (M, rows)

    nonpads = Expand (nonpad, B)
    {each("left right causal past", "@1 = Reshape (@, one)")}
    {each("left right", "@_unlimited = Less (@1, zero)")}
    back = Where (left_unlimited, unlimited, left1)
    ahead_window = Where (right_unlimited, unlimited, right1)
    ahead_causal = Min (ahead_window, zero)
    ahead = Where (causal1, ahead_causal, ahead_window)
    minus_back = Neg (back)
    back32 = Cast <to = 6> (minus_back)
    ahead32 = Cast <to = 6> (ahead)
    narrower = Min (back, ahead)
    banded_always = Less (narrower, unlimited)
    is_capped1 = Greater (softcap, float_zero)
    is_capped = Squeeze (is_capped1)

    {sizes("mask", "B H M", prefix="mask_")}
    mask_N = Shape <start = 3> (mask)
    mask_last_b = Sub (mask_B, one)
    mask_has_heads = Greater (mask_H, one)
    mask_has_rows = Greater (mask_M, one)
    mask_has_keys = Greater (mask_N, one)

    block_count = Mul (B, blocks)
    block_trips = Squeeze (block_count)
    o_blocks = Loop (block_trips, true) <body = block (int64 t, bool go) => (bool on, o_block) {{
        on = Identity (go)
        t1 = Reshape (t, one)
        b = Div (t1, blocks)
        b_to = Add (b, one)
        block_of_b = Mod (t1, blocks)
        start = Mul (block_of_b, rows)
        from = Min (start, last_start)
        to = Add (from, rows)

        nonpad_b = Slice (nonpads, b, b_to, zero)
        {real_keys("nonpad_b")}
        offset_nonpad = Sub (nonpad_b, M)
        offset = Where (not_given, past1, offset_nonpad)
        first = Add (from, offset)
        end = Add (to, offset)
        first_key = Sub (first, back)
        first_key_or_0 = Max (first_key, zero)
        last_key = Sub (N, one)
        key_from = Min (first_key_or_0, last_key)
        key_end = Add (end, ahead)
        real_key_end = Min (key_end, real)
        least_key_to = Add (key_from, one)
        key_to = Max (real_key_end, least_key_to)

        no_keys = Less (real, one)
        is_banded1 = Or (banded_always, no_keys)
        is_banded = Squeeze (is_banded1)
        band = If (is_banded) <then_branch = banded () => (band_drawn) {{
            {each("first end key_from key_to", "@_0 = Squeeze (@)")}
            i = Range (first_0, end_0, step)
            j = Range (key_from_0, key_to_0, step)
            {each("i j", "@32 = Cast <to = 6> (@)")}
            i_column = Unsqueeze (i32, one)
            j_minus_i = Sub (j32, i_column)
            not_after = LessOrEqual (j_minus_i, ahead32)
            not_before = GreaterOrEqual (j_minus_i, back32)
            is_real = Less (j, real)
            in_window = And (not_after, not_before)
            is_allowed = And (in_window, is_real)
            band_drawn = Where (is_allowed, float_zero, minus_inf)
        }}, else_branch = unbanded () => (band_of_zero) {{
            band_of_zero = Identity (no_band)
        }}>

        mask_b = Min (b, mask_last_b)
        mask_b_to = Add (mask_b, one)
        mask_i = Where (mask_has_rows, from, zero)
        mask_i_to = Where (mask_has_rows, to, one)
        mask_j = Where (mask_has_keys, key_from, zero)
        mask_j_to = Where (mask_has_keys, key_to, one)
        mask_from = Concat <axis = 0> (mask_b, mask_i, mask_j)
        mask_to = Concat <axis = 0> (mask_b_to, mask_i_to, mask_j_to)
        mask_block = Slice (mask, mask_from, mask_to, mask_axes)
        bias = Add (mask_block, band)
        row_max = ReduceMax <keepdims = 1> (bias, minus_one)
        all_masked = Equal (row_max, minus_inf)

        o_heads = Loop (key_heads, true) <body = head (int64 h, bool h_go) => (bool h_on, o_head) {{
            h_on = Identity (h_go)
            h1 = Reshape (h, one)
            h_to = Add (h1, one)
            q_from = Concat <axis = 0> (b, h1, from)
            q_to = Concat <axis = 0> (b_to, h_to, to)
            k_from = Concat <axis = 0> (b, h1, key_from)
            k_to = Concat <axis = 0> (b_to, h_to, key_to)
            q_block = Slice (q5, q_from, q_to, query_axes)
            {each("k v", "@_block = Slice (@, k_from, k_to, head_axes)")}
            rows_of_D = Concat <axis = 0> (minus_one, D)
            rows_of_E = Concat <axis = 0> (minus_one, E)
            {each("q k", "@2 = Reshape (@_block, rows_of_D)")}
            v2 = Reshape (v_block, rows_of_E)
            scores2 = com.microsoft.FusedMatMul <transB = 1> (q2, k2)
            scores4_shape = Concat <axis = 0> (one, G, rows, minus_one)
            scores4 = Reshape (scores2, scores4_shape)
            scores = If (is_capped) <then_branch = capped () => (scores_capped) {{
                quotient = Div (scores4, softcap)
                bounded = Tanh (quotient)
                scores_capped = Mul (bounded, softcap)
            }}, else_branch = uncapped () => (scores_uncapped) {{
                scores_uncapped = Identity (scores4)
            }}>
            g_start = Mul (h1, G)
            g_end = Add (g_start, G)
            g_from = Where (mask_has_heads, g_start, zero)
            g_to = Where (mask_has_heads, g_end, one)
            head_bias = Slice (bias, g_from, g_to, one)
            head_all_masked = Slice (all_masked, g_from, g_to, one)
            masked = Add (scores, head_bias)
            weights = Softmax <axis = -1> (masked)
            key_count = Sub (key_to, key_from)
            rows_of_keys = Concat <axis = 0> (minus_one, key_count)
            weights2 = Reshape (weights, rows_of_keys)
            o2 = MatMul (weights2, v2)
            o4_of_head_shape = Concat <axis = 0> (one, G, rows, E)
            o4_of_head = Reshape (o2, o4_of_head_shape)
            o_or_zero = Where (head_all_masked, float_zero, o4_of_head)
            o_head = Squeeze (o_or_zero, zero)
        }}>
        o_block = Identity (o_heads)
    }}>
    {joined_blocks("K, G")}
    {sizes("o_padded", "M", prefix="padded_")}
    before_last = Sub (padded_M, rows)
    rows_of_last = Sub (M, before_last)
    new_from = Sub (padded_M, rows_of_last)
    o_before = Slice (o_padded, zero, before_last, two)
    o_new = Slice (o_padded, new_from, padded_M, two)
    o = Concat <axis = 2> (o_before, o_new)
}}
"""
