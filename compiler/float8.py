"""8-bit floats on a CPU: conversions that give what the hardware of a GPU gives, bit for bit.

TVM 0.25 lowers a cast from or to an 8-bit float for LLVM by moving its exponent and fraction alone: zero, subnormal
numbers, infinity and NaN come out as other numbers, and so does what is too large. `exact` puts arithmetic on the bits
in place of every such cast. It rounds to the nearest, ties to even, makes what is too large, infinity included, the
largest finite number of that sign, and keeps NaN, as CUDA's constructors of these types do (`cuda_fp8.hpp`). CUDA
code needs none of this.
"""

from dataclasses import dataclass
from typing import Any, Final

from littledragon.compiler.features import kind, numpy_dtype, operator


@dataclass(frozen=True)
class Format:
    """Bits of the fraction, bias of the exponent, code of the largest number, and the first that is none.

    Behind a sign, infinity and NaN follow all numbers.
    """

    fraction: int
    bias: int
    largest: int
    special: int


FORMATS: Final = {"float8_e4m3fn": Format(3, 7, 0x7E, 0x7F), "float8_e5m2": Format(2, 15, 0x7B, 0x7C)}
"""OCP 8-bit Floating Point Specification (OFP8), revision 1.0."""
POWER: Final = "float8_e8m0fnu"
"""An exponent alone: the scales of microscaling formats. Casts to it round up, as CUDA's do."""
NAMES: Final = (*FORMATS, POWER)
SIGN: Final = 0x80
NAN: Final = 0x7F
"""Of both formats."""
LEADING: Final = 23
"""Bits of the fraction of a float32, whose exponent stands above it."""
BIAS: Final = 127
INFINITY: Final = 0x7F800000
_ELEMENTWISE: Final = ("Add", "Sub", "Mul", "Div", "Max", "Min")
_COMPARED: Final = ("EQ", "NE", "LT", "LE", "GT", "GE")
_VISITED: Final = (
    *("BufferLoad", "BufferStore", "SBlock", "Cast", "Broadcast", "Select", "Call"),
    *_ELEMENTWISE,
    *_COMPARED,
)


def exact(module: Any) -> Any:
    """The same module with conversions of 8-bit floats that are right on a CPU. Runs where TVM is imported.

    Casts from and to `NAMES`, constants of these types, and what is calculated in them (in float32, rounded each time)
    become integer and float32 arithmetic, of any number of lanes. Buffers inside of a function hold bytes instead; its
    parameters stay as they are. A module without 8-bit floats is given back as it is.

    Args:
        module: not lowered yet, scheduled or not.
    """
    import tvm

    changed = {}
    for name, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            body = _exact(function.body)
            if not body.same_as(function.body):
                changed[name] = function.with_body(body)
    return tvm.IRModule({**dict(module.functions.items()), **changed}, attrs=module.attrs) if changed else module


def _exact(body: Any) -> Any:
    from tvm.tirx.stmt_functor import ir_transform

    rewrite = _Rewrite({})
    return ir_transform(body, rewrite.enter, rewrite.leave, [*(f"tirx.{name}" for name in _VISITED), "ir.FloatImm"])


@dataclass(frozen=True)
class _Rewrite:
    """A node of an 8-bit float stays one, around its bits, so that whatever it is part of has the types that it had.

    buffers: each 8-bit float buffer that is allocated inside, or looks into such a one → one of bytes.
    """

    buffers: dict[Any, Any]

    def enter(self, node: Any) -> None:
        """Outer blocks come before the inner ones."""
        import tvm

        if kind(node) != "SBlock":
            return
        views = [view.buffer for view in node.match_buffers if view.source.buffer in self.buffers]
        for buffer in (*node.alloc_buffers, *views):
            if str(buffer.dtype) in NAMES:
                self.buffers[buffer] = tvm.tirx.decl_buffer(
                    buffer.shape,
                    "uint8",
                    buffer.name,
                    strides=buffer.strides,
                    elem_offset=buffer.elem_offset,
                    scope=buffer.scope(),
                    data_alignment=buffer.data_alignment,
                    offset_factor=buffer.offset_factor,
                    axis_separators=buffer.axis_separators,
                )

    def leave(self, node: Any) -> Any | None:
        """What takes the place of a node, whose children have been seen to; None where it stays."""
        name = kind(node)
        if name == "SBlock":
            return self._block(node) if self.buffers else None
        if name in ("BufferLoad", "BufferStore"):
            return self._access(node) if node.buffer in self.buffers else None
        if name in _COMPARED:
            return type(node)(_decoded(node.a), _decoded(node.b)) if _narrow(node.a) else None
        if name == "Cast":
            value = _decoded(node.value) if _narrow(node.value) else node.value
            if _narrow(node):
                return _encoded(value.astype(_like(node, "float32")), node.dtype)
            return value.astype(node.dtype) if _narrow(node.value) else None
        return _calculated(node) if _narrow(node) else None

    def _access(self, node: Any) -> Any:
        import tvm

        buffer = self.buffers[node.buffer]
        if kind(node) == "BufferStore":
            return tvm.tirx.BufferStore(buffer, _bits(node.value), node.indices, node.predicate)
        return tvm.tirx.reinterpret(node.dtype, tvm.tirx.BufferLoad(buffer, node.indices, node.predicate))

    def _block(self, block: Any) -> Any:
        import tvm

        def region(old: Any) -> Any:
            return tvm.tirx.BufferRegion(self.buffers.get(old.buffer, old.buffer), old.region)

        views = [
            tvm.tirx.MatchBufferRegion(self.buffers.get(view.buffer, view.buffer), region(view.source))
            for view in block.match_buffers
        ]
        return tvm.tirx.SBlock(
            block.iter_vars,
            [region(one) for one in block.reads],
            [region(one) for one in block.writes],
            block.name_hint,
            block.body,
            block.init,
            [self.buffers.get(buffer, buffer) for buffer in block.alloc_buffers],
            views,
            block.annotations,
        )


def _calculated(node: Any) -> Any | None:
    """A constant, a choice or arithmetic of 8-bit floats."""
    import numpy as np
    import tvm

    name = operator(node) if kind(node) == "Call" else kind(node)
    if name == "reinterpret":
        return None
    if name in _ELEMENTWISE:
        return _encoded(type(node)(_decoded(node.a), _decoded(node.b)), node.dtype)
    if name == "FloatImm":
        code = np.array(node.value).astype(numpy_dtype(str(node.dtype))).view(np.uint8)
        chosen = tvm.tirx.const(int(code), "uint8")
    elif name == "Broadcast":
        chosen = tvm.tirx.Broadcast(_bits(node.value), node.lanes)
    elif name == "Select":
        chosen = tvm.tirx.Select(node.condition, _bits(node.true_value), _bits(node.false_value))
    elif name == "if_then_else":
        chosen = tvm.tirx.if_then_else(node.args[0], _bits(node.args[1]), _bits(node.args[2]))
    else:
        arguments = [_decoded(argument) if _narrow(argument) else argument for argument in node.args]
        return _encoded(tvm.tirx.Call(_like(node, "float32"), node.op, arguments), node.dtype)
    return tvm.tirx.reinterpret(node.dtype, chosen)


def _name(dtype: Any) -> str:
    """Of the type without its lanes."""
    name, _, lanes = str(dtype).partition("x")
    return name if name in NAMES and (not lanes or lanes.isdecimal()) else str(dtype)


def _narrow(node: Any) -> bool:
    return _name(node.dtype) in NAMES


def _like(node: Any, dtype: str) -> str:
    """The type with as many lanes as a node of an 8-bit float has."""
    return dtype + str(node.dtype).removeprefix(_name(node.dtype))


def _bits(node: Any) -> Any:
    """The byte that an 8-bit float is."""
    import tvm

    if kind(node) == "Call" and operator(node) == "reinterpret" and str(node.args[0].dtype).startswith("uint8"):
        return node.args[0]
    return tvm.tirx.reinterpret(_like(node, "uint8"), node)


def _decoded(node: Any) -> Any:
    """The float32 of an 8-bit float. No step of it is a subnormal number, which is slow on some CPUs."""
    import tvm
    from tvm.tirx import bitwise_and, bitwise_or, reinterpret

    word, wide = _like(node, "uint32"), _like(node, "float32")

    def const(value: int) -> Any:
        return tvm.tirx.const(value, word)

    code = _bits(node).astype(word)
    if _name(node.dtype) == POWER:
        # Zero is 2^-127, which float32 has only as a subnormal number, and 255 is NaN: both have this bit.
        ends = bitwise_or((code == const(0)).astype(word), (code == const(0xFF)).astype(word))
        return reinterpret(wide, bitwise_or(code << const(LEADING), ends << const(LEADING - 1)))
    form = FORMATS[_name(node.dtype)]
    shift = LEADING - form.fraction
    magnitude = bitwise_and(code, const(SIGN - 1))
    # Below 2^fraction there is no leading one: a subnormal number is read as if there were one, which is taken off.
    below = (magnitude < const(1 << form.fraction)).astype(word)
    least = const((BIAS - form.bias + 1) << LEADING)
    number = (magnitude << const(shift)) + const((BIAS - form.bias) << LEADING) + (below << const(LEADING))
    value = reinterpret(wide, number) - reinterpret(wide, below * least)
    special = (magnitude >= const(form.special)).astype(word) * const(INFINITY)
    sign = bitwise_and(code, const(SIGN)) << const(24)
    return reinterpret(wide, bitwise_or(bitwise_or(reinterpret(word, value), special), sign))


def _encoded(value: Any, dtype: Any) -> Any:
    """The 8-bit float of this type that a float32 becomes."""
    import tvm
    from tvm.tirx import bitwise_and, bitwise_or, reinterpret

    lanes = str(dtype).removeprefix(_name(dtype))
    word, wide = f"uint32{lanes}", f"float32{lanes}"

    def const(number: int) -> Any:
        return tvm.tirx.const(number, word)

    bits = reinterpret(word, value)
    magnitude = bitwise_and(bits, const(0x7FFFFFFF))
    nan = (magnitude > const(INFINITY)).astype(word)
    if _name(dtype) == POWER:
        above = (magnitude > const(1 << (LEADING - 1))).astype(word)
        up = tvm.tirx.min((magnitude + const((1 << LEADING) - 1)) >> const(LEADING), const(0xFE)) * above
        return reinterpret(dtype, bitwise_or(up, nan * const(0xFF)).astype(f"uint8{lanes}"))
    form = FORMATS[_name(dtype)]
    shift = LEADING - form.fraction
    least = (BIAS - form.bias + 1) << LEADING  # the exponent of the smallest normal number
    largest = (form.largest << shift) + ((BIAS - form.bias) << LEADING)
    magnitude = tvm.tirx.min(magnitude, const(largest))
    exponent = tvm.tirx.max(bitwise_and(magnitude, const(INFINITY)), const(least))
    # The step of float32 numbers around this power of two is that of the 8-bit ones around the value: adding it rounds.
    power = exponent + const(shift << LEADING)
    rounded = reinterpret(word, reinterpret(wide, magnitude) + reinterpret(wide, power)) - power
    code = rounded + ((exponent - const(least)) >> const(shift))
    sign = bitwise_and(bits >> const(24), const(SIGN))
    return reinterpret(dtype, bitwise_or(bitwise_or(code, nan * const(NAN)), sign).astype(f"uint8{lanes}"))
