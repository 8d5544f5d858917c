"""A Triton kernel: products of many small matrices, with what a layer does before and after them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = ((64, 64, 32), (128, 64, 32), (32, 32, 32))
"""Rows, columns and depth of a tile, of which the fastest is taken for a shape."""
NO, LEFT, RIGHT = 0, 1, 2


@triton.jit
def kernel(
    a,
    b,
    out,
    bias,
    active,
    sums,
    M,
    N,
    K,
    a_matrix,
    a_row,
    a_column,
    b_matrix,
    b_row,
    b_column,
    BIAS: tl.constexpr,
    RELU: tl.constexpr,
    MASKED: tl.constexpr,
    SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """One tile of `out = a @ b`, `(matrices, M, N)`.

    BIAS, RELU: `bias` is added, and negative numbers become 0. MASKED: the factor that is multiplied by
    `active > 0`, which lies as it does. SUMS: the columns of `b` are added up, too.
    """
    matrix = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    column_sums = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        in_a = (m[:, None] < M) & (k[None, :] < K)
        in_b = (k[:, None] < K) & (n[None, :] < N)
        at_a = matrix * a_matrix + m[:, None] * a_row + k[None, :] * a_column
        at_b = matrix * b_matrix + k[:, None] * b_row + n[None, :] * b_column
        left = tl.load(a + at_a, mask=in_a, other=0.0)
        right = tl.load(b + at_b, mask=in_b, other=0.0)
        if MASKED == 1:
            left = tl.where(tl.load(active + at_a, mask=in_a, other=0.0) > 0, left, 0.0)
        if MASKED == 2:
            right = tl.where(tl.load(active + at_b, mask=in_b, other=0.0) > 0, right, 0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        if SUMS:
            column_sums += tl.sum(right, 0)
    if BIAS:
        total += tl.load(bias + matrix * N + n, mask=n < N, other=0.0)[None, :]
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # NaN stays NaN
    at = matrix * M * N + m[:, None] * N + n[None, :]
    tl.store(out + at, total, mask=(m[:, None] < M) & (n[None, :] < N))
    if SUMS and tl.program_id(1) == 0:  # all rows of tiles have the same sums
        tl.store(sums + matrix * N + n, column_sums, mask=n < N)


def multiply(
    a: Tensor,
    b: Tensor,
    block: tuple[int, int, int],
    *,
    bias: Tensor | None = None,
    relu: bool = False,
    active: Tensor | None = None,
    masked: int = NO,
    sums: bool = False,
    run=kernel,
) -> tuple[Tensor, Tensor]:
    """Returns `a @ b`, `(matrices, M, N)`, and the sums of `b`'s columns `(matrices, 1, N)` if asked for.

    `active` has the strides of the factor that is masked. `run`: the kernel, or its interpreter.
    """
    (matrices, M, K), N = a.shape, b.shape[-1]
    out, totals = a.new_empty(matrices, M, N), a.new_empty(matrices, 1, N if sums else 0)
    rows, columns, depth = block
    grid = (triton.cdiv(N, columns), triton.cdiv(M, rows), matrices)
    run[grid](
        *(a, b, out, out if bias is None else bias, out if active is None else active, totals),
        *(M, N, K, *a.stride(), *b.stride()),
        BIAS=bias is not None,
        RELU=relu,
        MASKED=masked,
        SUMS=sums,
        PRECISION="tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=depth,
    )
    return out, totals
