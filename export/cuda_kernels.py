"""ONNX functions around the fused attention of ONNX Runtime's CUDA provider; shapes as in ``export.kernels``.

Where nothing hinders, heads are folded into the batch: their number is not fixed in the file, and no tensor is
transposed. ``com.microsoft.MultiHeadAttention`` runs cuDNN's kernel on Hopper and later, FlashAttention-2 from Ampere
on (float16, bfloat16), and the memory-efficient one else (float32, values as wide as no key); its ``scale`` of 0 is
1/sqrt(d_k). ``Attention`` of opset 24 knows lengths and masks: FlashAttention-2 with lengths, the memory-efficient
kernel with a mask. What no kernel takes, a width that is no multiple of 8 say, both compute unfused.
"""

from export.fused_kernels import FLASH

# The same operator, which here scales the queries itself.
FUSED = FLASH.replace("Flash (", "Fused <scale> (").replace("scale = 1.0", "scale: float = @scale")

# As many queries as keys, no groups.
FUSED_SQUARE = """
FusedSquare <scale> (q, k, v) => (o) {
    BH = Shape <start = 0, end = 2> (q)
    MD = Shape <start = 2> (q)
    M = Shape <start = 2, end = 3> (q)
    E = Shape <start = 3> (v)
    folded = ReduceProd <keepdims = 1> (BH)
    q_shape = Concat <axis = 0> (folded, MD)
    v_shape = Concat <axis = 0> (folded, M, E)
    q3 = Reshape (q, q_shape)
    k3 = Reshape (k, q_shape)
    v3 = Reshape (v, v_shape)
    o3 = com.microsoft.MultiHeadAttention <num_heads = 1, unidirectional = 1, scale: float = @scale> (q3, k3, v3)
    o_shape = Concat <axis = 0> (BH, M, E)
    o = Reshape (o3, o_shape)
}
"""

# Kernels disagree on what causal means for more keys than queries, or fewer: keys past the last query are seen by none,
# queries past the last key see all. Grouped queries get copies of their keys.
FUSED_CAUSAL = """
FusedCausal <scale> (q, k, v) => (o) {
    M = Shape <start = 2, end = 3> (q)
    N = Shape <start = 2, end = 3> (k)
    H = Shape <start = 1, end = 2> (q)
    K = Shape <start = 1, end = 2> (k)
    square = Equal (M, N)
    alone = Equal (H, K)
    both = And (square, alone)
    fits = Squeeze (both)
    o = If (fits) <then_branch = as_it_is () => (o_fits) {
        o_fits = heed.FusedSquare <scale: float = @scale> (q, k, v)
    }, else_branch = cut () => (o_cut) {
        zero = Constant <value_ints = [0]> ()
        two = Constant <value_ints = [2]> ()
        B = Shape <start = 0, end = 1> (k)
        D = Shape <start = 3> (k)
        E = Shape <start = 3> (v)
        L = Min (M, N)
        q_cut = Slice (q, zero, L, two)
        k_cut = Slice (k, zero, L, two)
        v_cut = Slice (v, zero, L, two)
        G = Div (H, K)
        k_grouped = Concat <axis = 0> (B, K, G, L, D)
        v_grouped = Concat <axis = 0> (B, K, G, L, E)
        k_shape = Concat <axis = 0> (B, H, L, D)
        v_shape = Concat <axis = 0> (B, H, L, E)
        k_group = Unsqueeze (k_cut, two)
        v_group = Unsqueeze (v_cut, two)
        k_copied = Expand (k_group, k_grouped)
        v_copied = Expand (v_group, v_grouped)
        k_each = Reshape (k_copied, k_shape)
        v_each = Reshape (v_copied, v_shape)
        o_seen = heed.FusedSquare <scale: float = @scale> (q_cut, k_each, v_each)
        more1 = Greater (M, N)
        more = Squeeze (more1)
        o_cut = If (more) <then_branch = rest () => (o_all) {
            q_rest = Slice (q, L, M, two)
            o_rest = heed.Fused <scale: float = @scale> (q_rest, k, v)
            o_all = Concat <axis = 2> (o_seen, o_rest)
        }, else_branch = none () => (o_only) {
            o_only = Identity (o_seen)
        }>
    }>
}
"""

# Queries are scaled before they come here. A row without any real key is zero, whatever the kernel makes of it.
FUSED_PADDED = """
FusedPadded (q, k, v, nonpad) => (o) {
    zero = Constant <value_ints = [0]> ()
    one = Constant <value_ints = [1]> ()
    rest = Constant <value_ints = [-1]> ()
    last_axes = Constant <value_ints = [1, 2, 3]> ()
    nought32 = Constant <value = float {0}> ()
    nought = CastLike (nought32, q)
    BK = Shape <start = 0, end = 2> (k)
    folded = ReduceProd <keepdims = 1> (BK)
    N = Shape <start = 2, end = 3> (k)
    D = Shape <start = 3> (k)
    E = Shape <start = 3> (v)
    k_shape = Concat <axis = 0> (folded, rest, D)
    v_shape = Concat <axis = 0> (folded, rest, E)
    q3 = Reshape (q, k_shape)
    k3 = Reshape (k, k_shape)
    v3 = Reshape (v, v_shape)
    unsaid = Less (nonpad, zero)
    real = Where (unsaid, N, nonpad)
    column = Unsqueeze (real, one)
    of_heads = Expand (column, BK)
    lengths = Reshape (of_heads, rest)
    o3 = Attention <q_num_heads = 1, kv_num_heads = 1, scale = 1.0> (q3, k3, v3, , , , lengths)
    BHM = Shape <start = 0, end = 3> (q)
    o_shape = Concat <axis = 0> (BHM, E)
    found = Reshape (o3, o_shape)
    some1 = Greater (real, zero)
    some = Unsqueeze (some1, last_axes)
    o = Where (some, found, nought)
}
"""

# Queries are scaled before they come here. A mask broadcasts over batch and heads only, for the kernel; the largest of
# each row is sought in float32, as CUDA compares no bfloat16.
FUSED_MASKED = """
FusedMasked (q, k, v, mask) => (o) {
    minus = Constant <value_ints = [-1]> ()
    forbidden = Constant <value = float {-inf}> ()
    nought32 = Constant <value = float {0}> ()
    nought = CastLike (nought32, q)
    BH = Shape <start = 0, end = 2> (mask)
    M = Shape <start = 2, end = 3> (q)
    N = Shape <start = 2, end = 3> (k)
    bias_shape = Concat <axis = 0> (BH, M, N)
    bias = Expand (mask, bias_shape)
    found = Attention <scale = 1.0> (q, k, v, bias)
    mask32 = Cast <to = 1> (mask)
    top = ReduceMax <keepdims = 1> (mask32, minus)
    nothing = Equal (top, forbidden)
    o = Where (nothing, nought, found)
}
"""
