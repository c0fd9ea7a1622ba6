"""The quick CPU schedule computes what the plain program does, bit for bit."""

from typing import Any

import numpy as np
import pytest

from littledragon.compiler import brisk, float8, inputs, lowering, targets
from littledragon.compiler.features import features
from littledragon.compiler.zoo import Block, blocks

LLVM = targets.target("llvm")
CHOSEN = ("pv_context", "masked_softmax", "gated_mlp", "grouped_gemm", "layer_norm", "w4a16_matmul", "conv_strided")


def ran(module: Any, specs: list[dict[str, Any]]) -> list[Any]:
    import tvm

    arguments = [tvm.runtime.tensor(array) for array in inputs.make(specs, 0, 1)]
    tvm.compile(float8.exact(module), target=tvm.target.Target(LLVM))["main"](*arguments)
    return [argument.numpy() for argument in arguments]


@pytest.mark.parametrize("block", [b for b in blocks("demo") if b.operator in CHOSEN], ids=lambda b: b.operator)
def test_the_same_bits(block: Block) -> None:
    for module in lowering.modules(block.build(**block.cases[0].shape), LLVM).values():
        specs = inputs.specs(module, features(module))
        quick = brisk.brisk(module)
        assert "T.parallel" in quick.script()
        for plain, quickly in zip(ran(module, specs), ran(quick, specs), strict=True):
            assert np.array_equal(plain.view(np.uint8), quickly.view(np.uint8))
