"""Products with weights of a few bits, in the layouts in which published checkpoints hold them.

`staged` says whether the weights are unpacked as a whole first, as kernels for many rows do for each of their tiles,
or each where it is used, as kernels for a few rows do.
"""

from typing import Any

from littledragon.compiler.zoo.block import Argument, Program, computed
from littledragon.compiler.zoo.quant_irregular import product, stage


def awq_matmul(m: int, n: int, k: int, group: int, staged: bool, dtype: str = "float16") -> Program:
    """Y = X·(scale * (W - zero)) in AWQ's layout: W is k x n, eight columns of a row to a uint32, in the order 0 2 4 6
    1 3 5 7; scale and zero for each group of the reduction axis.
    """
    from tvm import te

    def compute(x: Any, packed: Any, zeros: Any, scale: Any) -> Any:
        def nibble(word: Any, c: Any) -> Any:
            place = (c % 2 * 4 + c % 8 // 2) * 4
            return ((word >> place.astype("uint32")) & te.const(15, "uint32")).astype(dtype)

        def element(i: Any, c: Any) -> Any:
            code, zero = nibble(packed[i, c // 8], c), nibble(zeros[i // group, c // 8], c)
            return (code - zero) * scale[i // group, c]

        weight = stage((k, n), element, staged)
        return product(x, lambda c, i: weight(i, c), n, dtype)

    return computed(
        "awq_matmul",
        compute,
        x=((m, k), dtype),
        packed=((k, n // 8), "uint32"),
        zeros=((k // group, n // 8), "uint32"),
        scale=((k // group, n), dtype),
    )


def gptq_matmul(
    m: int, n: int, k: int, group: int, staged: bool, bits: int = 4, ordered: bool = False, dtype: str = "float16"
) -> Program:
    """Y = X·(scale * (W - zero - 1)) in GPTQ's layout: W is k x n, 32 / bits rows of a column to a uint32.

    `ordered`: rows were quantised in the order of their activations, so the group of each stands in a list.
    """
    from tvm import te

    share, most = 32 // bits, (1 << bits) - 1

    def compute(x: Any, packed: Any, zeros: Any, scale: Any, *order: Any) -> Any:
        def field(word: Any, place: Any) -> Any:
            return ((word >> (place % share * bits).astype("uint32")) & te.const(most, "uint32")).astype(dtype)

        def element(i: Any, c: Any) -> Any:
            g = order[0][i] if ordered else i // group
            zero = field(zeros[g, c // share], c) + te.const(1, dtype)
            return (field(packed[i // share, c], i) - zero) * scale[g, c]

        weight = stage((k, n), element, staged)
        return product(x, lambda c, i: weight(i, c), n, dtype)

    order: dict[str, Argument] = {"order": ((k,), "int32")} if ordered else {}
    return computed(
        "gptq_matmul",
        compute,
        x=((m, k), dtype),
        packed=((k // share, n), "uint32"),
        zeros=((k // group, n // share), "uint32"),
        scale=((k // group, n), dtype),
        **order,
    )


def nf4_matmul(m: int, n: int, k: int, staged: bool, dtype: str = "bfloat16") -> Program:
    """Y = X·Wᵀ with the 16 values of NF4 (QLoRA): two codes to a byte, a table, a float32 scale for each 64."""

    def compute(x: Any, packed: Any, table: Any, scale: Any) -> Any:
        def element(c: Any, i: Any) -> Any:
            return (table[_half(packed[c, i // 2], 1 - i % 2)] * scale[c, i // 64]).astype(dtype)

        return product(x, stage((n, k), element, staged), n, dtype)

    return computed(
        "nf4_matmul",
        compute,
        x=((m, k), dtype),
        packed=((n, k // 2), "uint8"),
        table=((16,), "float32"),
        scale=((n, k // 64), "float32"),
    )


def mxfp4_matmul(m: int, n: int, k: int, staged: bool, dtype: str = "bfloat16") -> Program:
    """Y = X·Wᵀ with MXFP4 weights: 4-bit floats (e2m1), two to a byte, a power of two for each 32 of a row."""

    def compute(x: Any, packed: Any, scale: Any) -> Any:
        def element(c: Any, i: Any) -> Any:
            value = _e2m1(_half(packed[c, i // 2], i % 2))
            return (value * scale[c, i // 32].astype("float32")).astype(dtype)

        return product(x, stage((n, k), element, staged), n, dtype)

    return computed(
        "mxfp4_matmul",
        compute,
        x=((m, k), dtype),
        packed=((n, k // 2), "uint8"),
        scale=((n, k // 32), "float8_e8m0fnu"),
    )


def mxfp4_experts(experts: int, m: int, n: int, k: int) -> Program:
    """Y[e] = X[e]·W[e]ᵀ + b[e], bfloat16, with MXFP4 weights read by a table of 16 values (gpt-oss)."""
    from tvm import te

    def compute(x: Any, packed: Any, table: Any, scale: Any, bias: Any) -> Any:
        def element(e: Any, c: Any, i: Any) -> Any:
            return table[_half(packed[e, c, i // 2], i % 2)] * scale[e, c, i // 32].astype("bfloat16")

        weight = te.compute((experts, n, k), element, name="dequantize")
        axis = te.reduce_axis((0, k), name="k")
        total = te.compute(
            (experts, m, n),
            lambda e, r, c: te.sum(x[e, r, axis].astype("float32") * weight[e, c, axis].astype("float32"), axis=axis),
            name="matmul",
        )
        return te.compute(
            (experts, m, n),
            lambda e, r, c: (total[e, r, c] + bias[e, c].astype("float32")).astype("bfloat16"),
            name="add_bias",
        )

    return computed(
        "mxfp4_experts",
        compute,
        x=((experts, m, k), "bfloat16"),
        packed=((experts, n, k // 2), "uint8"),
        table=((16,), "bfloat16"),
        scale=((experts, n, k // 32), "float8_e8m0fnu"),
        bias=((experts, n), "bfloat16"),
    )


def nvfp4_matmul(m: int, n: int, k: int) -> Program:
    """Y = X·Wᵀ of two NVFP4 matrices, bfloat16 out: 4-bit floats (e2m1), an e4m3 scale for each 16, one of all."""
    from tvm import te

    def compute(x: Any, packed: Any, token_scale: Any, scale: Any, whole_scale: Any) -> Any:
        left = te.compute((m, k), lambda r, i: _e2m1(_half(x[r, i // 2], i % 2)).astype("float16"), name="unpack_x")
        right = te.compute(
            (n, k), lambda c, i: _e2m1(_half(packed[c, i // 2], i % 2)).astype("float16"), name="unpack_w"
        )
        outer, inner = te.reduce_axis((0, k // 16), name="kb"), te.reduce_axis((0, 16), name="ki")

        def element(r: Any, c: Any) -> Any:
            step = outer * 16 + inner
            scaled = token_scale[r, outer].astype("float32") * scale[c, outer].astype("float32")
            return te.sum(
                left[r, step].astype("float32") * right[c, step].astype("float32") * scaled, axis=[outer, inner]
            )

        total = te.compute((m, n), element, name="matmul")
        return te.compute((m, n), lambda r, c: (total[r, c] * whole_scale[0]).astype("bfloat16"), name="cast")

    return computed(
        "nvfp4_matmul",
        compute,
        x=((m, k // 2), "uint8"),
        packed=((n, k // 2), "uint8"),
        token_scale=((m, k // 16), "float8_e4m3fn"),
        scale=((n, k // 16), "float8_e4m3fn"),
        whole_scale=((1,), "float32"),
    )


def ternary_matmul(m: int, n: int, k: int, staged: bool) -> Program:
    """Y = X·Wᵀ of weights -1, 0 and 1: int8 activations, four quarters of the rows in one byte, int32 sums (BitNet)."""
    from tvm import te

    def compute(x: Any, packed: Any, token_scale: Any, scale: Any) -> Any:
        def element(c: Any, i: Any) -> Any:
            place = (c // (n // 4) * 2).astype("uint8")
            return ((packed[c % (n // 4), i] >> place) & te.const(3, "uint8")).astype("int8") - te.const(1, "int8")

        return product(
            x,
            stage((n, k), element, staged),
            n,
            "bfloat16",
            lambda total, r, c: total.astype("float32") * (token_scale[r] * scale[0]),
        )

    return computed(
        "ternary_matmul",
        compute,
        x=((m, k), "int8"),
        packed=((n // 4, k), "uint8"),
        token_scale=((m,), "float32"),
        scale=((1,), "float32"),
    )


def codebook_matmul(m: int, n: int, k: int, books: int, codes: int) -> Program:
    """Y = scale * (X·Wᵀ): each eight weights of a row are the sum of one entry of each book, float16 (AQLM)."""
    from tvm import te

    def compute(x: Any, place: Any, entries: Any, scale: Any) -> Any:
        outer, inner = te.reduce_axis((0, k // 8), name="kb"), te.reduce_axis((0, 8), name="ki")
        book = te.reduce_axis((0, books), name="book")

        def element(r: Any, c: Any) -> Any:
            weight = entries[book, place[c, outer, book], inner].astype("float32")
            return te.sum(x[r, outer * 8 + inner].astype("float32") * weight, axis=[outer, book, inner])

        total = te.compute((m, n), element, name="matmul")
        return te.compute(
            (m, n), lambda r, c: (total[r, c] * scale[c].astype("float32")).astype("float16"), name="scale_rows"
        )

    return computed(
        "codebook_matmul",
        compute,
        x=((m, k), "float16"),
        place=((n, k // 8, books), "uint16" if codes > 256 else "uint8"),
        entries=((books, codes, 8), "float16"),
        scale=((n,), "float16"),
    )


def sparse24_matmul(m: int, n: int, k: int, dtype: str = "float16") -> Program:
    """Y = X·Wᵀ, two of each four weights of a row kept, and their places in two bits each, eight to a uint16."""
    from tvm import te

    def compute(x: Any, values: Any, places: Any) -> Any:
        axis = te.reduce_axis((0, k // 2), name="k")

        def element(r: Any, c: Any) -> Any:
            place = ((places[c, axis // 8] >> (axis % 8 * 2).astype("uint16")) % te.const(4, "uint16")).astype("int32")
            return te.sum(
                x[r, axis // 2 * 4 + place].astype("float32") * values[c, axis].astype("float32"),
                axis=axis,
            )

        total = te.compute((m, n), element, name="matmul")
        return te.compute((m, n), lambda r, c: total[r, c].astype(dtype), name="cast")

    return computed(
        "sparse24_matmul",
        compute,
        x=((m, k), dtype),
        values=((n, k // 2), dtype),
        places=((n, k // 16), "uint16"),
    )


def ggml_q4_0_matmul(m: int, n: int, k: int) -> Program:
    """Y = X·Wᵀ, both in blocks of 32 with a scale: int8 against 4 bits, a block's halves in the halves of its bytes."""
    from tvm import te

    def compute(x: Any, packed: Any, token_scale: Any, scale: Any) -> Any:
        outer, inner = te.reduce_axis((0, k // 32), name="kb"), te.reduce_axis((0, 32), name="ki")

        def element(r: Any, c: Any) -> Any:
            byte = packed[c, outer, inner % 16] >> (inner // 16 * 4).astype("uint8")
            whole = (byte & te.const(15, "uint8")).astype("int32") - 8
            scaled = token_scale[r, outer].astype("float32") * scale[c, outer].astype("float32")
            return te.sum((whole * x[r, outer, inner].astype("int32")).astype("float32") * scaled, axis=[outer, inner])

        return te.compute((m, n), element, name="matmul")

    return computed(
        "ggml_q4_0_matmul",
        compute,
        x=((m, k // 32, 32), "int8"),
        packed=((n, k // 32, 16), "uint8"),
        token_scale=((m, k // 32), "float16"),
        scale=((n, k // 32), "float16"),
    )


def ggml_q4_k_matmul(m: int, n: int, k: int) -> Program:
    """Y = X·Wᵀ, both in blocks of 256: int8 against 4 bits with a step and a least value for each 32 (Q4_K)."""
    from tvm import te

    def compute(x: Any, packed: Any, steps: Any, least: Any, token_scale: Any, scale: Any, least_scale: Any) -> Any:
        outer, part = te.reduce_axis((0, k // 256), name="kb"), te.reduce_axis((0, 8), name="part")
        inner = te.reduce_axis((0, 32), name="ki")

        def element(r: Any, c: Any) -> Any:
            byte = packed[c, outer, part // 2 * 32 + inner] >> (part % 2 * 4).astype("uint8")
            code = (byte & te.const(15, "uint8")).astype("float32")
            step = scale[c, outer].astype("float32") * steps[c, outer, part].astype("float32")
            low = least_scale[c, outer].astype("float32") * least[c, outer, part].astype("float32")
            value = x[r, outer, part * 32 + inner].astype("float32") * token_scale[r, outer]
            return te.sum(value * (code * step - low), axis=[outer, part, inner])

        return te.compute((m, n), element, name="matmul")

    return computed(
        "ggml_q4_k_matmul",
        compute,
        x=((m, k // 256, 256), "int8"),
        packed=((n, k // 256, 128), "uint8"),
        steps=((n, k // 256, 8), "uint8"),
        least=((n, k // 256, 8), "uint8"),
        token_scale=((m, k // 256), "float32"),
        scale=((n, k // 256), "float16"),
        least_scale=((n, k // 256), "float16"),
    )


def _half(byte: Any, upper: Any) -> Any:
    """In TE: the lower or, where `upper` is 1, the upper four bits of a byte, as an index."""
    from tvm import te

    return ((byte >> (upper * 4).astype("uint8")) % te.const(16, "uint8")).astype("int32")


def _e2m1(code: Any) -> Any:
    """In TE: the 4-bit float of these bits, float32: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""
    from tvm import tirx

    size = code % 8
    large = (size % 2 + 2) * (size // 2 - 1)
    value = tirx.Select(size < 4, size.astype("float32") * 0.5, large.astype("float32"))
    return tirx.Select(code < 8, value, -value)
