"""Holds Triton's layer against torch's in Triton's interpreter: TRITON_INTERPRET=1 python THIS_FILE.

A process of its own, because Triton reads the variable when it is imported.
"""

import itertools
import math

import torch

from corerl.nn import fused_linear
from corerl.nn.triton_matmul import multiply

SHAPES = ((3, 37, 23, 40), (2, 16, 70, 1), (1, 5, 1, 33))
"""Copies, rows, inputs and outputs, of which no block is a divisor."""
KINDS = (
    (fused_linear.plain, fused_linear.fused),
    (fused_linear.plain_of_input, fused_linear.fused_of_input),
    (fused_linear.plain_of_parameters, fused_linear.fused_of_parameters),
)


def tensors(copies: int, rows: int, inputs: int, outputs: int) -> list[tuple]:
    x, weight = torch.randn(copies, rows, inputs), torch.randn(copies, inputs, outputs)
    bias, grad, out = (torch.randn(copies, n, outputs) for n in (1, rows, rows))
    return [(x, weight, bias), (grad, out, weight), (grad, out, x)]


def main() -> None:
    torch.manual_seed(0)
    for shape, relu, block in itertools.product(
        SHAPES, (False, True), ((16, 32, 16), (32, 16, 32))
    ):
        for (plain, fused), given in zip(KINDS, tensors(*shape), strict=True):
            torch.testing.assert_close(
                fused(*given, relu, block=block), plain(*given, relu), rtol=1e-5, atol=1e-5
            )
    odd = torch.tensor([[[math.nan], [-math.inf], [math.inf], [-1.0]]])
    seen, _ = multiply(odd, torch.ones(1, 1, 1), (16, 16, 16), relu=True)
    assert seen.flatten().tolist()[1:] == [0, math.inf, 0] and seen[0, 0].isnan()
    print("equal")


if __name__ == "__main__":
    main()
