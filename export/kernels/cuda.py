"""ONNX functions around the fused attention of ONNX Runtime's CUDA provider; shapes as in ``functions``.

Where possible, heads are folded into the batch: then their number is not fixed in the file, and no tensor is
transposed. ``com.microsoft.MultiHeadAttention`` runs cuDNN's kernel on Hopper GPUs and later, FlashAttention-2 on
Ampere and later (float16, bfloat16), and otherwise the memory-efficient kernel (float32, or values of another width
than keys). Its ``scale`` of 0 means 1/sqrt(d_k). ``Attention`` of opset 24 has lengths and masks: it runs
FlashAttention-2 with lengths, and the memory-efficient kernel with a mask. For inputs that no kernel supports, such as
a width that is not a multiple of 8, both operators compute unfused attention.
"""

from export.kernels.fused import flash
from export.kernels.text import causal, constants, copied, each, folded, real_keys, sizes, unfolded

_SCALE = "scale: float = @scale"  # these kernels scale the queries themselves

FUSED = flash("Fused <scale>", f"o3 = com.microsoft.MultiHeadAttention <num_heads = 1, {_SCALE}> (q3, k3, v3)")

# Causal: as many queries as keys, no groups.
FUSED_SQUARE = f"""
FusedSquare <scale> (q, k, v) => (o) {{
    {sizes("q", "BH MD M")}
    {sizes("v", "E")}
    batch = ReduceProd <keepdims = 1> (BH)
    {folded("MD", "M, E")}
    o3 = com.microsoft.MultiHeadAttention <num_heads = 1, unidirectional = 1, {_SCALE}> (q3, k3, v3)
    o_shape = Concat <axis = 0> (BH, M, E)
    o = Reshape (o3, o_shape)
}}
"""

# Causal attention by FusedSquare, since the kernels align queries and keys differently where their numbers differ.
# Grouped queries get copies of their keys.
_FIRST = f"""
    {constants("zero two")}
    {sizes("k", "B D")}
    {sizes("v", "E")}
    L = Min (M, N)
    {each("q k v", "@_first = Slice (@, zero, L, two)")}
    G = Div (H, K)
    k_grouped = Concat <axis = 0> (B, K, G, L, D)
    v_grouped = Concat <axis = 0> (B, K, G, L, E)
    k_ungrouped = Concat <axis = 0> (B, H, L, D)
    v_ungrouped = Concat <axis = 0> (B, H, L, E)
    {copied("first", "@_grouped", "@_ungrouped")}
    o_first = heed.FusedSquare <{_SCALE}> (q_first, k_copies, v_copies)
"""

FUSED_CAUSAL = f"""
FusedCausal <scale> (q, k, v) => (o) {{
    {sizes("q", "M")}
    {sizes("k", "N")}
    {sizes("q", "H")}
    {sizes("k", "K")}
    as_many = Equal (M, N)
    no_groups = Equal (H, K)
    fits2 = And (as_many, no_groups)
    fits = Squeeze (fits2)
    {causal(f"heed.FusedSquare <{_SCALE}>", f"heed.Fused <{_SCALE}>", _FIRST)}
}}
"""

# Queries are scaled before. A row without real keys is set to zero, as the kernels' results differ there.
FUSED_PADDED = f"""
FusedPadded (q, k, v, nonpad) => (o) {{
    {constants("zero one minus_one")}
    last_axes = Constant <value_ints = [1, 2, 3]> ()
    {constants("float_zero")}
    q_zero = CastLike (float_zero, q)
    {sizes("k", "BK")}
    batch = ReduceProd <keepdims = 1> (BK)
    {sizes("k", "N D")}
    {sizes("v", "E")}
    {folded("minus_one, D", "minus_one, E")}
    {real_keys("nonpad")}
    column = Unsqueeze (real, one)
    for_each_head = Expand (column, BK)
    lengths = Reshape (for_each_head, minus_one)
    o3 = Attention <q_num_heads = 1, kv_num_heads = 1, scale = 1.0> (q3, k3, v3, , , , lengths)
    {unfolded("o_any")}
    has_keys1 = Greater (real, zero)
    has_keys = Unsqueeze (has_keys1, last_axes)
    o = Where (has_keys, o_any, q_zero)
}}
"""

# Queries are scaled before. The kernel lets a mask broadcast over batch and heads only, so it is expanded over queries
# and keys. It is compared in float32, since CUDA compares no bfloat16. A row of -inf is found by zeros and ones, since
# CUDA's maximum of such a row is the lowest float.
FUSED_MASKED = f"""
FusedMasked (q, k, v, mask) => (o) {{
    {constants("minus_one minus_inf float_zero")}
    q_zero = CastLike (float_zero, q)
    {sizes("mask", "BH")}
    {sizes("q", "M")}
    {sizes("k", "N")}
    bias_shape = Concat <axis = 0> (BH, M, N)
    bias = Expand (mask, bias_shape)
    o_any = Attention <scale = 1.0> (q, k, v, bias)
    mask32 = Cast <to = 1> (mask)
    is_masked = Equal (mask32, minus_inf)
    masked = Cast <to = 1> (is_masked)
    least = ReduceMin <keepdims = 1> (masked, minus_one)
    all_masked = Greater (least, float_zero)
    o = Where (all_masked, q_zero, o_any)
}}
"""
