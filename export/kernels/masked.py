"""An ONNX function around ONNX Runtime's fused attention, for a mask alone; shapes as in ``functions``."""

from export.kernels.text import constants, each, joined_blocks, quotient, sizes

MASKED_ROWS = 2048  # most queries of a block: with fewer, keys are copied more often; with more, masks take more memory
FEWEST_ROWS = 256  # least queries of a block, for any number of keys
CELLS = 1 << 23  # most numbers of the mask in a block, which has two copies of them
PARTS = 4  # of a block, for the kernel's threads

# A loop over blocks of queries and the heads of the mask, and in it a loop over the query heads that share a head of
# the mask, so that the mask is sliced once for all of them. A block has as many queries as CELLS allow.
#
# The kernel distributes heads over threads. So a block is passed as PARTS heads that share one key head: query r of the
# block is query r / PARTS of head r mod PARTS. Then queries and results stay in their order, and only rows of the mask
# are rearranged.
#
# The kernel treats the lowest float as forbidden. So where the maximum of a row of the mask is below -1e35, the row is
# raised to that maximum, which still outweighs every score. Rows of -inf are set to zero after the kernel.
#
# Keys are passed as a past, since a past may be longer than the queries; it may not be shorter. The last block is
# filled with copies of the last query. Blocks computes the cases that the fused kernel does not support.
MASKED = f"""
Masked (q, k, v, mask) => (o) {{
    {constants("zero one eight")}
    parts = Constant <value_ints = [{PARTS}]> ()
    {sizes("q", "M")}
    {sizes("k", "N")}
    {sizes("q", "D")}
    {sizes("v", "E")}
    cells = Constant <value_ints = [{CELLS}]> ()
    least_rows = Constant <value_ints = [{FEWEST_ROWS}]> ()
    most_rows = Constant <value_ints = [{MASKED_ROWS}]> ()
    N_or_1 = Max (N, one)
    rows_by_cells = Div (cells, N_or_1)
    rows_at_most = Min (rows_by_cells, most_rows)
    max_rows = Max (rows_at_most, least_rows)
    {quotient("blocks", "M", "max_rows")}
    all_parts = Mul (blocks, parts)
    {quotient("part", "M", "all_parts")}
    too_few_keys = Less (N, part)
    enough_keys = Not (too_few_keys)
    as_wide = Equal (D, E)
    remainder = Mod (D, eight)
    multiple_of_8 = Equal (remainder, zero)
    fits2 = And (enough_keys, as_wide)
    fits3 = And (fits2, multiple_of_8)
    fits = Squeeze (fits3)
    o = If (fits) <then_branch = fused () => (o_fused) {{
        {constants("minus_one two true float_zero minus_inf")}
        limit = Constant <value = float {{1e35}}> ()
        first = Constant <value_int = 0> ()
        step = Constant <value_int = 1> ()
        {sizes("q", "B H")}
        {sizes("k", "K")}
        G = Div (H, K)
        {sizes("mask", "B H M", prefix="mask_")}
        mask_N = Shape <start = 3> (mask)
        mask_last_b = Sub (mask_B, one)
        mask_last_row = Sub (mask_M, one)
        sharing = Div (H, mask_H)
        sharing_trips = Squeeze (sharing)
        rows = Mul (part, parts)
        rows_0 = Squeeze (rows)
        row = Range (first, rows_0, step)
        row_shape = Concat <axis = 0> (part, parts)
        row_in_parts = Reshape (row, row_shape)
        row_by_part = Transpose <perm = [1, 0]> (row_in_parts)
        mask_order = Reshape (row_by_part, minus_one)
        last_query = Sub (M, one)
        rows_of_D = Concat <axis = 0> (minus_one, D)
        rows_of_mask = Concat <axis = 0> (minus_one, mask_N)
        heads_of_keys = Concat <axis = 0> (minus_one, N, D)
        q_rows = Reshape (q, rows_of_D)
        {each("k v", "@_heads = Reshape (@, heads_of_keys)")}
        mask_rows = Reshape (mask, rows_of_mask)
        q3_shape = Concat <axis = 0> (one, part, minus_one)
        mask_has_keys = Greater (mask_N, one)
        bias_width = Where (mask_has_keys, one, N)
        raise_shape = Concat <axis = 0> (rows, bias_width)
        bias_shape = Concat <axis = 0> (one, parts, part, N)
        by_part_shape = Concat <axis = 0> (parts, part)
        o_shape = Concat <axis = 0> (part, parts, E)
        last_key = Sub (N, one)
        last_key32 = Cast <to = 6> (last_key)
        total = Cast <to = 6> (N)

        blocks_of_b = Mul (blocks, mask_H)
        block_count = Mul (B, blocks_of_b)
        block_trips = Squeeze (block_count)
        o_blocks = Loop (block_trips, true) <body = block (int64 t, bool go) => (bool on, o_block) {{
            on = Identity (go)
            t1 = Reshape (t, one)
            b = Div (t1, blocks_of_b)
            t_of_b = Mod (t1, blocks_of_b)
            block_of_b = Div (t_of_b, mask_H)
            mask_h = Mod (t_of_b, mask_H)
            from = Mul (block_of_b, rows)
            query_or_beyond = Add (from, row)
            query = Min (query_or_beyond, last_query)

            mask_b = Min (b, mask_last_b)
            mask_b_start = Mul (mask_b, mask_H)
            mask_head = Add (mask_b_start, mask_h)
            mask_head_start = Mul (mask_head, mask_M)
            mask_row_or_beyond = Add (from, mask_order)
            mask_row = Min (mask_row_or_beyond, mask_last_row)
            mask_at = Add (mask_head_start, mask_row)
            mask_block = Gather (mask_rows, mask_at)
            row_max = ReduceMax <keepdims = 1> (mask_block, minus_one)
            all_masked = Equal (row_max, minus_inf)
            row_max_plus_limit = Add (row_max, limit)
            negative_part = Min (row_max_plus_limit, float_zero)
            raise = Where (all_masked, float_zero, negative_part)
            raise_row = Expand (raise, raise_shape)
            bias_rows = Sub (mask_block, raise_row)
            bias = Reshape (bias_rows, bias_shape)
            all_masked_by_part = Reshape (all_masked, by_part_shape)
            all_masked_by_row = Transpose <perm = [1, 0]> (all_masked_by_part)
            all_masked3 = Unsqueeze (all_masked_by_row, two)
            first_head = Mul (mask_h, sharing)

            o_heads = Loop (sharing_trips, true) <body = head (int64 s, bool h_go) => (bool h_on, o_head) {{
                h_on = Identity (h_go)
                s1 = Reshape (s, one)
                h = Add (first_head, s1)
                q_b_start = Mul (b, H)
                q_head = Add (q_b_start, h)
                q_head_start = Mul (q_head, M)
                q_at = Add (q_head_start, query)
                q_block = Gather (q_rows, q_at)
                q3 = Reshape (q_block, q3_shape)
                k_of_h = Div (h, G)
                k_b_start = Mul (b, K)
                k_at = Add (k_b_start, k_of_h)
                {each("k v", "@_head = Gather (@_heads, k_at)")}
                {each("k v", "@_past = Unsqueeze (@_head, zero)")}
                none = Slice (k_head, zero, zero, one)
                o3, present_k, present_v = com.microsoft.GroupQueryAttention
                    <num_heads = {PARTS}, kv_num_heads = 1, scale = 1.0, causal = 0>
                    (q3, none, none, k_past, v_past, last_key32, total, , , , bias)
                o_any = Reshape (o3, o_shape)
                o_or_zero = Where (all_masked3, float_zero, o_any)
                o_head = Reshape (o_or_zero, rows_of_D)
            }}>
            o_block = Identity (o_heads)
        }}>
        {joined_blocks("mask_H, sharing")}
        o_fused = Slice (o_padded, zero, M, two)
    }}, else_branch = by_blocks () => (o_by_blocks) {{
        no = Constant <value = bool {{0}}> ()
        unlimited = Constant <value_int = -1> ()
        no_nonpad = Constant <value_ints = [-1]> ()
        uncapped = Constant <value = float {{0}}> ()
        no_past = Constant <value_int = 0> ()
        o_by_blocks = heed.Blocks (q, k, v, mask, no, unlimited, unlimited, uncapped, no_nonpad, no_past)
    }}>
}}
"""
