"""One step of a recurrent layer: the product with the last hidden state, and the gates."""

from typing import Any

from littledragon.compiler.zoo.block import Program, export


def lstm_step(batch: int, hidden: int, *, dtype: str = "float16") -> Program:
    """(h', c') of an LSTM: the product H·Uᵀ of 4·hidden rows of U (input, forget, cell, output) and the gates.

    from_input: what the step's input and the biases add to the gates, computed for all steps before. The cell's
    state is float32.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(state: Any, weight: Any, from_input: Any, cell: Any) -> list[Any]:
        product = _product(state, weight)

        def gate(b: Any, u: Any, part: int) -> Any:
            return product[b, u + part * hidden] + from_input[b, u + part * hidden].astype("float32")

        new_cell = te.compute(
            (batch, hidden),
            lambda b, u: (
                tirx.sigmoid(gate(b, u, 1)) * cell[b, u] + tirx.sigmoid(gate(b, u, 0)) * tirx.tanh(gate(b, u, 2))
            ),
            name="cell",
        )
        new_state = te.compute(
            (batch, hidden),
            lambda b, u: (tirx.sigmoid(gate(b, u, 3)) * tirx.tanh(new_cell[b, u])).astype(dtype),
            name="hidden",
        )
        return [new_state, new_cell]

    def forward(state: Any, weight: Any, from_input: Any, cell: Any) -> Any:
        return op.tensor_expr_op(compute, "lstm_step", [state, weight, from_input, cell])

    return export(
        forward,
        state=((batch, hidden), dtype),
        weight=((4 * hidden, hidden), dtype),
        from_input=((batch, 4 * hidden), dtype),
        cell=((batch, hidden), "float32"),
    )


def gru_step(batch: int, hidden: int, *, dtype: str = "float16") -> Program:
    """h' of a GRU as cuDNN computes it: the product H·Uᵀ of 3·hidden rows of U (reset, update, new) and the gates.

    from_input: what the step's input and the biases add to the gates, computed for all steps before.
    """
    from tvm import te, tirx
    from tvm.relax.frontend.nn import op

    def compute(state: Any, weight: Any, from_input: Any) -> Any:
        product = _product(state, weight)

        def element(b: Any, u: Any) -> Any:
            reset, update, new = (from_input[b, u + part * hidden].astype("float32") for part in range(3))
            reset = tirx.sigmoid(reset + product[b, u])
            update = tirx.sigmoid(update + product[b, u + hidden])
            new = tirx.tanh(new + reset * product[b, u + 2 * hidden])
            return (new + update * (state[b, u].astype("float32") - new)).astype(dtype)

        return te.compute((batch, hidden), element, name="hidden")

    def forward(state: Any, weight: Any, from_input: Any) -> Any:
        return op.tensor_expr_op(compute, "gru_step", [state, weight, from_input])

    return export(
        forward,
        state=((batch, hidden), dtype),
        weight=((3 * hidden, hidden), dtype),
        from_input=((batch, 3 * hidden), dtype),
    )


def _product(state: Any, weight: Any) -> Any:
    """H·Uᵀ in float32."""
    from tvm import te

    axis = te.reduce_axis((0, weight.shape[1]), name="k")
    return te.compute(
        (state.shape[0], weight.shape[0]),
        lambda b, u: te.sum(state[b, axis].astype("float32") * weight[u, axis].astype("float32"), axis=axis),
        name="matmul",
    )
