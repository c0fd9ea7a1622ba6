"""Where rounding cannot hide a mistake: outputs that are the same in whatever order a program's sums are added.

On inputs of small whole numbers (case 3 of `compiler/inputs.py`) products are multiples of a power of two, and as long
as no sum of them outgrows the accumulator's bits, every partial sum is exact. What follows, such as a bias, a rounding
to the output's type or a sigmoid, then moves a result by an amount that is known. `known` follows a program from its
inputs to its outputs with these two things in mind; what it does not understand, it does not claim.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from littledragon.compiler.features import children, constant, kind, loads, main, operator

CASE: Final = 3
"""The small whole numbers of `compiler/inputs.py`."""
BITS: Final = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4, "float8_e5m2": 3}
"""Of the significand, the leading one included."""
LARGEST: Final = {
    "float64": 1.7e308,
    "float32": 3.4e38,
    "bfloat16": 3.3e38,
    "float16": 65504.0,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}
"""Largest number of the type, or a little less."""
LEAST_EXPONENT: Final = {"float16": -24, "float8_e4m3fn": -9, "float8_e5m2": -16}
"""Of the smallest number; other types have room enough."""
DEVIATIONS: Final = 8
"""A sum of independent terms of either sign stays within so many standard deviations, in every order that does not
look at the terms first: of 10^12 partial sums none is expected outside."""
APPROXIMATE: Final = 2.0**-21
"""Relative error of a quick division, and absolute one of a quick erf, tanh or sigmoid."""
STEEPEST: Final = 1.2
"""Largest slope of erf, tanh and sigmoid; where only the relative error of the argument is known, half of that
error is what arrives (y · f'(y) < 0.5)."""


@dataclass(frozen=True)
class Known:
    """What is known of every element of a buffer.

    most: its largest magnitude. grid: where it is exact, all values are multiples of 2^grid; else None, and a value v
    is known up to relative · |v| + slack. power: mean square, where values are independent and centred around 0.
    """

    most: float
    grid: int | None
    power: float | None = None
    relative: float = 0.0
    slack: float = 0.0

    @property
    def error(self) -> float:
        return self.relative * self.most + self.slack


class _Unknown(Exception):
    """This expression, or the program from here on, is not understood."""


def known(module: Any, specs: list[dict[str, Any]]) -> list[tuple[float, float] | None]:
    """For each output in order: (relative, slack) of its elements before they are stored, None where unknown.

    (0.0, 0.0) means that a legitimate kernel has no choice at all. Case `CASE` only. Runs where TVM is imported.
    """
    names = {str(buffer.name) for buffer in main(module).buffer_map.values()}
    reader = _Reader({str(spec["name"]): _argument(spec) for spec in specs if spec["role"] != "output"}, names)
    outputs = [spec for spec in specs if spec["role"] == "output"]
    try:
        reader.statement(main(module).body)
    except _Unknown:
        return [None] * len(outputs)
    found: list[tuple[float, float] | None] = []
    for spec in outputs:
        state = reader.states.get(spec["name"])
        found.append((state.relative, state.slack) if state and spec["dtype"] in BITS else None)
    return found


def _argument(spec: dict[str, Any]) -> Known:
    """What `inputs.make` puts there in this case."""
    dtype, role = str(spec["dtype"]), spec["role"]
    if role == "index":
        return Known(max(abs(int(spec["low"])), abs(int(spec["high"]))), 0)
    if role == "mask" or dtype == "bool":
        return Known(1.0, 0)
    if role == "scale":
        return Known(2.0**-4, -7)
    if dtype.startswith("uint"):
        return Known(_largest(dtype), 0)
    return Known(2.0, 0, 2.0)


def _largest(dtype: str) -> float:
    """Of an integer type."""
    if dtype == "bool":
        return 1.0
    return 2.0 ** int(dtype.lstrip("uint"))


@dataclass
class _Reader:
    states: dict[str, Known | None]
    arguments: set[str]

    def statement(self, node: Any) -> None:
        name = kind(node)
        if name == "SeqStmt":
            for part in node.seq:
                self.statement(part)
        elif name == "For":
            if kind(node.body) == "SeqStmt":
                raise _Unknown("what one round writes, the next may read")
            self.statement(node.body)
        elif name == "SBlockRealize":
            self.statement(node.block)
        elif name == "SBlock":
            reduce = [axis.dom.extent for axis in node.iter_vars if int(axis.iter_type) == 2]
            if reduce or node.init is not None:
                self._reduction(node, [constant(extent) for extent in reduce])
            else:
                self.statement(node.body)
        elif name == "BufferStore":
            self._store(str(node.buffer.name), self._stored(node))
        else:
            raise _Unknown(name)

    def _store(self, buffer: str, state: Known | None) -> None:
        earlier = self.states.get(buffer, state)
        self.states[buffer] = _either(earlier, state) if earlier and state else None

    def _stored(self, node: Any) -> Known | None:
        if any(str(load.buffer.name) == str(node.buffer.name) for load in loads(node.value)):
            return None
        value = node.value
        # How an output is rounded when it is stored is not part of what is known of it.
        last = kind(value) == "Cast" and str(node.buffer.name) in self.arguments
        try:
            return self.value(value.value if last else value)
        except _Unknown:
            return None

    def _reduction(self, block: Any, extents: list[int | None]) -> None:
        store, init = block.body, block.init
        written = [str(region.buffer.name) for region in block.writes]
        simple = kind(store) == "BufferStore" and kind(init) == "BufferStore" and None not in extents
        if not simple or any(name in self.states for name in written):
            self.states |= dict.fromkeys(written)
            return
        terms = math.prod(extent for extent in extents if extent)
        name = str(store.buffer.name)
        try:
            self.states[name] = self._reduced(store, init, terms)
        except _Unknown:
            self.states[name] = None

    def _reduced(self, store: Any, init: Any, terms: int) -> Known:
        value, name = store.value, str(store.buffer.name)
        if kind(value) not in ("Add", "Max", "Min"):
            raise _Unknown(kind(value))
        sides = [value.a, value.b]
        own = [kind(side) == "BufferLoad" and str(side.buffer.name) == name for side in sides]
        if sum(own) != 1:
            raise _Unknown("no reduction of one term at a time")
        term = sides[own.index(False)]
        if any(str(load.buffer.name) == name for load in loads(term)):
            raise _Unknown("not linear")
        each = self.value(term)
        if kind(value) != "Add":
            return replace(each, power=None)
        start = self.value(init.value)
        if each.grid is None or start.grid is None:
            raise _Unknown("a sum of roundings")
        most = terms * each.most
        if each.power is not None:
            most = min(most, DEVIATIONS * math.sqrt(terms * each.power))
        total = Known(most + start.most, min(each.grid, start.grid), each.power and each.power * terms)
        total = _rounded(total, str(store.buffer.dtype))
        if total.grid is None:
            raise _Unknown("partial sums are rounded")
        return total

    def value(self, node: Any) -> Known:
        """Raises _Unknown."""
        name, dtype = kind(node), str(node.dtype)
        if name in ("IntImm", "FloatImm"):
            return _constant(float(node.value))
        if name == "Var":
            return Known(_largest(dtype), 0)
        if name == "BufferLoad":
            return self._load(node)
        if name == "Cast":
            return _rounded(self._whole(node.value, dtype) if "int" in dtype else self.value(node.value), dtype)
        if name in ("EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or", "Not"):
            for child in children(node):
                self._whole(child, dtype)
            return Known(1.0, 0)
        if name == "Select" or (name == "Call" and operator(node) == "if_then_else"):
            condition, one, other = children(node)[-3:]
            self._whole(condition, "bool")
            return _either(self.value(one), self.value(other))
        if name in ("Max", "Min"):
            return _either(self.value(node.a), self.value(node.b))
        if "int" in dtype or dtype == "bool":
            return self._integer(node, dtype)
        if name in ("Add", "Sub"):
            return _rounded(_sum(self.value(node.a), self.value(node.b), _apart(node)), dtype)
        if name == "Mul":
            return _rounded(_product(self.value(node.a), self.value(node.b), _apart(node)), dtype)
        if name == "Div" and kind(node.b) == "FloatImm" and node.b.value:
            one, by = self.value(node.a), abs(float(node.b.value))
            return Known(one.most / by, None, None, one.relative + APPROXIMATE, one.slack / by)
        if name == "Call":
            return self._call(node, dtype)
        raise _Unknown(name)

    def _load(self, node: Any) -> Known:
        for index in node.indices:
            for load in loads(index):
                self._whole(load, "int64")
        state = self.states.get(str(node.buffer.name))
        if state is None:
            raise _Unknown(str(node.buffer.name))
        return state

    def _whole(self, node: Any, dtype: str) -> Known:
        """An operand that must be exact, since what becomes of it jumps."""
        state = self.value(node)
        if state.grid is None:
            raise _Unknown("rounded, then compared or cut")
        return replace(state, grid=0 if "int" in dtype else state.grid)

    def _integer(self, node: Any, dtype: str) -> Known:
        """Whole numbers, which wrap around alike everywhere."""
        parts = [self._whole(child, dtype) for child in children(node)]
        name = kind(node)
        if name == "Call":
            name = operator(node)
            if name not in ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_right", "shift_left", "abs"):
                raise _Unknown(name)
        most = _largest(dtype)
        if name in ("Add", "Sub"):
            most = min(most, parts[0].most + parts[1].most)
        elif name == "Mul":
            most = min(most, parts[0].most * parts[1].most)
        elif name == "bitwise_and":
            constants = [float(c.value) for c in children(node)[-2:] if kind(c) == "IntImm" and int(c.value) >= 0]
            most = min([most, *constants])
        elif name in ("shift_right", "FloorDiv", "abs"):
            most = min(most, parts[0].most)
        return Known(most, 0)

    def _call(self, node: Any, dtype: str) -> Known:
        name = operator(node)
        arguments = children(node)
        if name in ("fabs", "abs"):
            return replace(self.value(arguments[-1]), power=None)
        if name in ("erf", "tanh", "sigmoid"):
            inside = self.value(arguments[-1])
            error = 0.5 * inside.relative + STEEPEST * inside.slack + APPROXIMATE
            return _rounded(Known(1.0, None, None, 0.0, error), dtype)
        raise _Unknown(name)


def _constant(value: float) -> Known:
    if not math.isfinite(value):
        raise _Unknown("not a number to reckon with")
    numerator, denominator = abs(value).as_integer_ratio()
    grid = 1 - denominator.bit_length() if numerator % 2 else (numerator & -numerator).bit_length() - 1
    # Zero fits every grid.
    return Known(abs(value), grid if numerator else 60, 0.0 if not numerator else None)


def _rounded(state: Known, dtype: str) -> Known:
    """What is left known once a value is held in this type.

    Raises:
        _Unknown: it may be too large for it.
    """
    if dtype not in BITS:
        return state
    if state.most > LARGEST[dtype]:
        raise _Unknown("overflow")
    least = LEAST_EXPONENT.get(dtype, -100)
    if state.grid is not None and state.grid >= least and state.most <= 2.0 ** (BITS[dtype] + state.grid):
        return state
    once = 2.0 ** -BITS[dtype]
    relative = state.relative + once * (1 + state.relative)
    return Known(state.most * (1 + once), None, None, relative, state.slack * (1 + once) + 2.0**least)


def _sum(one: Known, other: Known, apart: bool) -> Known:
    most = one.most + other.most
    if one.grid is not None and other.grid is not None:
        power = one.power + other.power if apart and one.power is not None and other.power is not None else None
        return Known(most, min(one.grid, other.grid), power)
    # An error relative to a part is one relative to the sum, and to what the other part may take away.
    relative = max(one.relative, other.relative)
    lost = one.relative * other.most + other.relative * one.most
    both = 2 * relative * min(one.most, other.most)
    return Known(most, None, None, relative, one.slack + other.slack + min(lost, both))


def _product(one: Known, other: Known, apart: bool) -> Known:
    most = one.most * other.most
    if one.grid is not None and other.grid is not None:
        power = None
        if apart and one.power is not None and other.power is not None:
            power = one.power * other.power
        elif apart and one.power is not None:
            power = one.power * other.most**2
        elif apart and other.power is not None:
            power = other.power * one.most**2
        return Known(most, one.grid + other.grid, power)
    relative = one.relative + other.relative + one.relative * other.relative
    slack = one.slack * (other.most + other.error) + other.slack * (one.most + one.error)
    return Known(most, None, None, relative, slack)


def _either(one: Known, other: Known) -> Known:
    """One or the other, or the larger or the smaller of both."""
    grid = min(one.grid, other.grid) if one.grid is not None and other.grid is not None else None
    centred = one.power is not None and other.power is not None and 0.0 in (one.most, other.most)
    power = max(one.power or 0.0, other.power or 0.0) if centred else None
    relative, slack = max(one.relative, other.relative), max(one.slack, other.slack)
    return Known(max(one.most, other.most), grid, power, relative, slack)


def _apart(node: Any) -> bool:
    """Whether both operands read different buffers, so that their values have nothing to do with each other."""
    left, right = set(_names(node.a)), set(_names(node.b))
    return not left & right


def _names(expression: Any) -> Iterator[str]:
    for load in loads(expression):
        yield str(load.buffer.name)
