"""Wrong kernels, made from right ones: what the numerical check has to catch.

A mutation is a function of a module and a source of choices, and gives the changed module, or None where the module has
nothing of the kind. It edits one block, so it works on a program before and after scheduling. Each one changes what
is computed, not how it is rounded; its docstring says why no identity makes the two equal. Reductions whose result
cannot matter are left alone: subtracting another number than the maximum inside a softmax changes nothing.

`FAULTS` are those that a mistaken schedule or a mistaken translation makes; `ROUNDINGS` are those whose difference is
itself a rounding, which a check can only tell where sums are exact or long. `spoil` does the same to an output.
Everything here but `spoil` runs where TVM is imported.
"""

import random as choices
from collections.abc import Callable, Iterator
from typing import Any, Final

from littledragon.compiler.features import children, constant, kind, loads, main, operator

Random = choices.Random
Mutation = Callable[[Any, Random], Any | None]
SMALL: Final = 1e-3
"""A constant below this that is added is an epsilon."""


# -- reductions: one block `total[i] = total[i] + term(i, k)` -------------------------------------------------------


def last_term_dropped(module: Any, random: Random) -> Any | None:
    """The reduction is one short: the term is some product of inputs, not zero for almost all of them."""
    return _terms(module, random, lambda k, extent: k == extent - 1)


def first_term_dropped(module: Any, random: Random) -> Any | None:
    """The reduction starts one late."""
    return _terms(module, random, lambda k, _: k == 0)


def middle_term_dropped(module: Any, random: Random) -> Any | None:
    """One term somewhere is left out, as between two parts of a split reduction."""
    return _terms(module, random, lambda k, extent: k == random.randrange(extent))


def last_tile_dropped(module: Any, random: Random) -> Any | None:
    """The last 16 terms are left out: a loop bound rounded down."""
    return _terms(module, random, lambda k, extent: k >= extent - 16, 17)


def part_of_a_thread_dropped(module: Any, random: Random) -> Any | None:
    """Every 32nd term is left out: one thread of a warp does not add its share."""
    return _terms(module, random, lambda k, _: k % 32 == 31, 32)


def half_of_the_terms_dropped(module: Any, random: Random) -> Any | None:
    """Only one part of a reduction that was split in two reaches the result."""
    return _terms(module, random, lambda k, extent: k >= extent // 2, 2)


def term_added_twice(module: Any, random: Random) -> Any | None:
    """Two parts of a split reduction overlap by one term, of a sum (the larger of two equals is no mistake)."""

    def again(block: Any) -> Any | None:
        axis = _longest(block)
        if axis is None or kind(block.body.value) != "Add":
            return None
        store, at = block.body, random.randrange(int(axis.dom.extent))
        term = _own_and_term(store)[1]
        return _with_value(block, store.value + _select(axis.var == at, term, term - term))

    return _edit(module, random, again)


def not_reset(module: Any, random: Random) -> Any | None:
    """The accumulator starts from the neighbouring element's sum, which is not zero for almost all inputs."""

    def carried(block: Any) -> Any | None:
        if block.init is None or kind(block.init) != "BufferStore" or not _sums(block):
            return None
        indices = list(block.init.indices)
        moving = [d for d, e in enumerate(block.init.buffer.shape) if kind(indices[d]) == "Var" and constant(e) != 1]
        if not moving:
            return None
        last, indices = indices[moving[-1]], [*indices]
        import tvm

        indices[moving[-1]] = tvm.tirx.max(last - 1, 0)
        before = tvm.tirx.BufferLoad(block.init.buffer, indices)
        value = _select(last > 0, before, block.init.value)
        return _block(block, init=tvm.tirx.BufferStore(block.init.buffer, value, block.init.indices))

    return _edit(module, random, carried)


def wrong_start(module: Any, random: Random) -> Any | None:
    """The accumulator starts from 1 instead of 0."""

    def from_one(block: Any) -> Any | None:
        import tvm

        if block.init is None or kind(block.init) != "BufferStore" or not _sums(block):
            return None
        one = tvm.tirx.const(1, block.init.buffer.dtype)
        return _block(block, init=tvm.tirx.BufferStore(block.init.buffer, one, block.init.indices))

    return _edit(module, random, from_one)


def sign_flipped(module: Any, random: Random) -> Any | None:
    """Terms are subtracted."""

    def subtracted(block: Any) -> Any | None:
        if not _sums(block):
            return None
        own, term = _own_and_term(block.body)
        return _with_value(block, own - term)

    return _edit(module, random, subtracted)


def minimum_for_maximum(module: Any, random: Random) -> Any | None:
    """The other end of what is reduced: equal only where all terms are."""

    def other(block: Any) -> Any | None:
        import tvm

        if not _terms_matter(block) or kind(block.body.value) not in ("Max", "Min"):
            return None
        own, term = _own_and_term(block.body)
        ends = {"Max": tvm.tirx.min, "Min": tvm.tirx.max}
        init = block.init
        axis = _longest(block)
        if init is None or axis is None or int(axis.dom.extent) == 1:
            return None
        start = {"Max": tvm.tirx.max_value, "Min": tvm.tirx.min_value}[kind(block.body.value)](str(own.dtype))
        changed = _with_value(block, ends[kind(block.body.value)](own, term))
        return _block(changed, init=tvm.tirx.BufferStore(init.buffer, start, init.indices))

    return None if _calls(module) & {"exp", "exp2"} else _edit(module, random, other)


def maximum_for_sum(module: Any, random: Random) -> Any | None:
    """The largest term in place of the sum of more than one."""

    def largest(block: Any) -> Any | None:
        import tvm

        axis = _longest(block)
        if axis is None or not _sums(block) or constant(axis.dom.extent) == 1:
            return None
        return _with_value(block, tvm.tirx.max(*_own_and_term(block.body)))

    return _edit(module, random, largest)


def operand_shifted(module: Any, random: Random) -> Any | None:
    """One operand of a product is read one further along the reduction than the other (around the end)."""

    def shifted(block: Any) -> Any | None:
        axis = _longest(block)
        if axis is None or not _sums(block) or constant(axis.dom.extent) == 1:
            return None
        term = _own_and_term(block.body)[1]
        along = [load for load in loads(term) if any(kind(i) == "Var" and i.same_as(axis.var) for i in load.indices)]
        # With one operand alone this were another order of the same terms.
        if len({str(load.buffer.name) for load in along}) < 2:
            return None
        return _with_value(block, _shifted(block.body.value, along[0], axis.var, (axis.var + 1) % axis.dom.extent))

    return _edit(module, random, shifted)


def operand_from_the_next_row(module: Any, random: Random) -> Any | None:
    """One operand belongs to the next output element: every result moves by one, around the end."""

    def moved(block: Any) -> Any | None:
        axis = _last_spatial(block)
        if axis is None or not _sums(block):
            return None
        term = _own_and_term(block.body)[1]
        along = [load for load in loads(term) if any(kind(i) == "Var" and i.same_as(axis.var) for i in load.indices)]
        if not along:
            return None
        return _with_value(block, _shifted(block.body.value, along[-1], axis.var, (axis.var + 1) % axis.dom.extent))

    return _edit(module, random, moved)


def operand_transposed(module: Any, random: Random) -> Any | None:
    """Two indices of a square operand change places: equal only where it is symmetric."""

    def swapped(block: Any) -> Any | None:
        for load in _read(block):
            shape = [constant(extent) for extent in load.buffer.shape]
            if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 1:
                continue
            if not all(kind(index) == "Var" for index in load.indices[-2:]):
                continue
            indices = [*load.indices[:-2], load.indices[-1], load.indices[-2]]
            return _with_value(block, _replaced(block.body.value, load, _at(load, indices)))
        return None

    return _edit(module, random, swapped)


# -- spatial: which elements are written --------------------------------------------------------------------------


def last_tile_not_written(module: Any, random: Random) -> Any | None:
    """The last elements of an output keep what was there before."""
    return _unwritten(module, random, lambda index, extent: index >= extent - max(1, extent // 8))


def one_element_not_written(module: Any, random: Random) -> Any | None:
    """One element along the last axis of an output keeps what was there before."""
    return _unwritten(module, random, lambda index, extent: index == random.randrange(extent))


# -- what is done with each element ------------------------------------------------------------------------------


def operand_dropped(module: Any, random: Random) -> Any | None:
    """A parameter is not added, or not multiplied with: a bias, a residual or a scale."""

    def without(block: Any) -> Any | None:
        names = _arguments(module)
        for node in _expressions(_value(block)):
            if kind(node) not in ("Add", "Mul"):
                continue
            for kept, dropped in ((node.a, node.b), (node.b, node.a)):
                if kind(_uncast(dropped)) == "BufferLoad" and str(_uncast(dropped).buffer.name) in names:
                    return _with_value(block, _replaced(block.body.value, node, kept))
        return None

    return _edit(module, random, without, reductions=False)


def activation_dropped(module: Any, random: Random) -> Any | None:
    """relu, sigmoid, tanh or erf is left out: none of them is the identity on numbers of both signs."""

    def bare(block: Any) -> Any | None:
        for node in _expressions(_value(block)):
            if kind(node) == "Call" and operator(node) in ("sigmoid", "tanh", "erf", "exp"):
                return _with_value(block, _replaced(block.body.value, node, children(node)[-1]))
            if kind(node) == "Max" and kind(node.b) == "FloatImm" and float(node.b.value) == 0.0:
                return _with_value(block, _replaced(block.body.value, node, node.a))
        return None

    return _edit(module, random, bare, reductions=False)


def wrong_constant(module: Any, random: Random) -> Any | None:
    """A factor or divisor in the program is a quarter too large: a scale, or the count of a mean."""

    def larger(block: Any) -> Any | None:
        import tvm

        for node in _expressions(_value(block)):
            if kind(node) not in ("Mul", "Div"):
                continue
            for side in (node.a, node.b):
                if kind(side) == "FloatImm" and float(side.value) not in (0.0, 0.5):
                    more = tvm.tirx.const(float(side.value) * 1.25, side.dtype)
                    return _with_value(block, _replaced(block.body.value, side, more))
        return None

    return _edit(module, random, larger, reductions=False)


def wrong_zero_point(module: Any, random: Random) -> Any | None:
    """A whole number that is subtracted is one too large."""

    def more(block: Any) -> Any | None:
        import tvm

        for node in _expressions(_value(block)):
            if kind(node) == "Sub" and kind(node.b) in ("FloatImm", "IntImm") and float(node.b.value) % 1 == 0:
                one = tvm.tirx.const(float(node.b.value) + 1, node.b.dtype)
                return _with_value(block, _replaced(block.body.value, node.b, one))
        return None

    return _edit(module, random, more, reductions=False)


def wrong_group(module: Any, random: Random) -> Any | None:
    """A scale of a group is taken from the first group, for every group."""
    return _index(module, random, lambda index: kind(index) == "FloorDiv", reductions=False)


def wrong_broadcast(module: Any, random: Random) -> Any | None:
    """A parameter that has a value for each column or channel gives every one of them its first."""

    def first(block: Any) -> Any | None:
        names = _arguments(module)
        for load in _read(block):
            wide = [d for d, extent in enumerate(load.buffer.shape) if constant(extent) != 1]
            fewer = len(wide) < len([a for a in block.iter_vars if constant(a.dom.extent) != 1])
            if str(load.buffer.name) in names and fewer and wide and kind(load.indices[wide[-1]]) == "Var":
                indices = [*load.indices]
                indices[wide[-1]] = indices[wide[-1]] * 0
                return _with_value(block, _replaced(block.body.value, load, _at(load, indices)))
        return None

    return _edit(module, random, first, reductions=False)


def clamp_dropped(module: Any, random: Random) -> Any | None:
    """What is cut off at the ends of a quantised range runs over."""

    def open_(block: Any) -> Any | None:
        for node in _expressions(_value(block)):
            if kind(node) in ("Min", "Max") and kind(node.b) in ("FloatImm", "IntImm") and abs(node.b.value) > 1:
                return _with_value(block, _replaced(block.body.value, node, node.a))
        return None

    return _edit(module, random, open_, reductions=False)


def cut_instead_of_rounded(module: Any, random: Random) -> Any | None:
    """A quantised value is cut towards zero: another whole number for half of all inputs."""

    def cut(block: Any) -> Any | None:
        import tvm

        for node in _expressions(_value(block)):
            if kind(node) == "Call" and operator(node) in ("round", "nearbyint"):
                return _with_value(block, _replaced(block.body.value, node, tvm.tirx.trunc(children(node)[-1])))
        return None

    return _edit(module, random, cut, reductions=False)


def sign_of_bytes_confused(module: Any, random: Random) -> Any | None:
    """Signed bytes are read as unsigned ones, or the other way round: 256 apart for half of all values."""

    def confused(block: Any) -> Any | None:
        other = {"int8": "uint8", "uint8": "int8"}
        for node in _expressions(_value(block)):
            if kind(node) == "Cast" and str(node.value.dtype) in other and str(node.dtype) not in other:
                twisted = node.value.astype(other[str(node.value.dtype)]).astype(str(node.dtype))
                return _with_value(block, _replaced(block.body.value, node, twisted))
        return None

    return _edit(module, random, confused)


def nibbles_swapped(module: Any, random: Random) -> Any | None:
    """Packed numbers are taken from the neighbouring place of their word."""

    def other(block: Any) -> Any | None:
        for node in _expressions(_value(block)):
            if kind(node) == "Call" and operator(node) == "shift_right":
                word, by = children(node)[-2:]
                if kind(by) == "IntImm":
                    continue
                return _with_value(block, _replaced(block.body.value, node, word >> (by ^ 4)))
        return None

    return _edit(module, random, other, reductions=False)


def mask_ignored(module: Any, random: Random) -> Any | None:
    """Where a mask chooses between a value and a constant, the value is always taken."""

    def always(block: Any) -> Any | None:
        for node in _expressions(_value(block)):
            if not _chooses(node):
                continue
            condition, one, other = children(node)[-3:]
            masked = any(True for _ in loads(condition))
            values = [v for v in (one, other) if kind(v) not in ("FloatImm", "IntImm")]
            if masked and len(values) == 1:
                return _with_value(block, _replaced(block.body.value, node, values[0]))
        return None

    return _edit(module, random, always)


def padding_of_edge_values(module: Any, random: Random) -> Any | None:
    """The guard of the padding is gone: where there should be zeros are the nearest values."""

    def open_(block: Any) -> Any | None:
        import tvm

        for node in _expressions(_value(block)):
            if not _chooses(node):
                continue
            condition, one, other = children(node)[-3:]
            if any(True for _ in loads(condition)) or kind(one) != "BufferLoad" or kind(other) != "FloatImm":
                continue
            shape = [int(extent) for extent in one.buffer.shape]
            inside = [
                tvm.tirx.max(tvm.tirx.min(index, extent - 1), 0)
                for index, extent in zip(one.indices, shape, strict=True)
            ]
            return _with_value(block, _replaced(block.body.value, node, _at(one, inside)))
        return None

    return _edit(module, random, open_, reductions=False)


def epsilon_dropped(module: Any, random: Random) -> Any | None:
    """The small number that keeps a division away from zero is not there."""

    def without(block: Any) -> Any | None:
        for node in _expressions(_value(block)):
            if kind(node) == "Add" and kind(node.b) == "FloatImm" and 0 < float(node.b.value) < SMALL:
                return _with_value(block, _replaced(block.body.value, node, node.a))
        return None

    return _edit(module, random, without)


# -- roundings: what no bound can tell from honest ones in general -------------------------------------------------


def narrow_accumulator(module: Any, random: Random) -> Any | None:
    """Every partial sum is rounded to float16 where float32 is asked for."""

    def narrow(block: Any) -> Any | None:
        if not _sums(block) or str(block.body.buffer.dtype) != "float32":
            return None
        return _with_value(block, block.body.value.astype("float16").astype("float32"))

    return _edit(module, random, narrow)


def output_cut_instead_of_rounded(module: Any, random: Random) -> Any | None:
    """A float32 result is cut, not rounded, when it is stored in 16 or 8 bits."""

    def cut(block: Any) -> Any | None:
        import tvm

        lost = {"float16": 13, "bfloat16": 16, "float8_e4m3fn": 20, "float8_e5m2": 21}
        if kind(block.body) != "BufferStore" or kind(block.body.value) != "Cast":
            return None
        node = block.body.value
        if str(node.dtype) not in lost or str(node.value.dtype) != "float32":
            return None
        bits = tvm.tirx.reinterpret("uint32", node.value)
        kept = tvm.tirx.reinterpret("float32", bits >> lost[str(node.dtype)] << lost[str(node.dtype)])
        return _with_value(block, kept.astype(str(node.dtype)))

    return _edit(module, random, cut, reductions=False)


FAULTS: Final[tuple[Mutation, ...]] = (
    last_term_dropped,
    first_term_dropped,
    middle_term_dropped,
    last_tile_dropped,
    part_of_a_thread_dropped,
    half_of_the_terms_dropped,
    term_added_twice,
    not_reset,
    wrong_start,
    sign_flipped,
    minimum_for_maximum,
    maximum_for_sum,
    operand_shifted,
    operand_from_the_next_row,
    operand_transposed,
    last_tile_not_written,
    one_element_not_written,
    operand_dropped,
    activation_dropped,
    wrong_constant,
    wrong_zero_point,
    wrong_group,
    wrong_broadcast,
    clamp_dropped,
    cut_instead_of_rounded,
    sign_of_bytes_confused,
    nibbles_swapped,
    mask_ignored,
    padding_of_edge_values,
    epsilon_dropped,
)
ROUNDINGS: Final[tuple[Mutation, ...]] = (narrow_accumulator, output_cut_instead_of_rounded)


# -- outputs ------------------------------------------------------------------------------------------------------

SPOILT: Final = (
    "all zeros",
    "one constant",
    "one NaN",
    "one infinity",
    "one element off",
    "two rows exchanged",
    "rows moved by one",
    "transposed",
    "negated",
    "doubled",
    "last row as before",
)


def spoil(kind_: str, output: Any, before: Any, seed: int) -> Any | None:
    """An output as a broken kernel leaves it, or None where that changes nothing. Pure numpy, runs anywhere.

    Args:
        output: the right one; it is not changed.
        before: what the buffer held before the kernel ran.

    Raises:
        ValueError: no such kind, see `SPOILT`.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    wrong = output.copy()
    flat, at = wrong.reshape(-1), int(random.integers(output.size))
    floats = output.dtype.kind not in "biu"
    if kind_ == "all zeros":
        flat[:] = 0
    elif kind_ == "one constant":
        flat[:] = flat[at]
    elif kind_ == "one NaN":
        flat[at] = np.nan if floats else flat[at]
    elif kind_ == "one infinity":
        flat[at] = np.inf if floats else flat[at]
    elif kind_ == "one element off":
        # A quarter of the largest, or the smallest step there is.
        step = np.abs(output.astype(np.float64)).max() / 4
        flat[at] = flat[at] + np.asarray(step).astype(output.dtype) if floats else flat[at] ^ 1
    elif kind_ == "two rows exchanged" and output.ndim and len(output) > 1:
        wrong[[0, -1]] = output[[-1, 0]]
    elif kind_ == "rows moved by one" and output.ndim:
        wrong = np.roll(output, 1, axis=0)
    elif kind_ == "transposed" and output.ndim > 1 and output.shape[-1] == output.shape[-2]:
        wrong = np.ascontiguousarray(output.swapaxes(-1, -2))
    elif kind_ == "negated" and output.dtype.kind != "b":
        wrong = -output
    elif kind_ == "doubled" and output.dtype.kind != "b":
        wrong = output + output
    elif kind_ == "last row as before" and output.ndim:
        wrong[-1] = before[-1]
    elif kind_ not in SPOILT:
        raise ValueError(f"{kind_}: choose one of {', '.join(SPOILT)}")
    return None if wrong.tobytes() == output.tobytes() else wrong


# -- editing a module ---------------------------------------------------------------------------------------------


def _edit(module: Any, random: Random, change: Callable[[Any], Any | None], *, reductions: bool = True) -> Any | None:
    """The module with one block changed, one of those that `change` gives something for; None where there is none."""
    import tvm

    found: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        if kind(node) == "SBlock" and kind(node.body) == "BufferStore" and (reductions or not _reduces(node)):
            changed = change(node)
            if changed is not None:
                found.append((node, changed))

    function = main(module)
    tvm.tirx.stmt_functor.post_order_visit(function.body, visit)
    if not found:
        return None
    old, new = random.choice(found)

    def put(node: Any) -> Any | None:
        return new if node.same_as(old) or node.name_hint == old.name_hint else None

    body = tvm.tirx.stmt_functor.ir_transform(function.body, None, put, ["tirx.SBlock"])
    return tvm.IRModule({"main": function.with_body(body)})


def _block(block: Any, **changed: Any) -> Any:
    import tvm

    fields = {
        name: changed.get(name, getattr(block, name))
        for name in ("iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers")
    }
    return tvm.tirx.SBlock(**fields, annotations=block.annotations)


def _with_value(block: Any, value: Any) -> Any:
    import tvm

    return _block(block, body=tvm.tirx.BufferStore(block.body.buffer, value, block.body.indices))


def _value(block: Any) -> Any:
    return block.body.value


def _reduces(block: Any) -> bool:
    return any(int(axis.iter_type) == 2 for axis in block.iter_vars)


def _own_and_term(store: Any) -> tuple[Any, Any]:
    """The accumulator's load and the term of `total = total + term`."""
    value, name = store.value, str(store.buffer.name)
    sides = (value.a, value.b)
    own = [side for side in sides if kind(side) == "BufferLoad" and str(side.buffer.name) == name]
    term = next(side for side in sides if not side.same_as(own[0]))
    return own[0], term


def _terms_matter(block: Any) -> bool:
    """A reduction of one term at a time."""
    if not _reduces(block) or kind(block.body.value) not in ("Add", "Max", "Min"):
        return False
    name, value = str(block.body.buffer.name), block.body.value
    return sum(kind(side) == "BufferLoad" and str(side.buffer.name) == name for side in (value.a, value.b)) == 1


def _sums(block: Any) -> bool:
    return _terms_matter(block) and kind(block.body.value) == "Add"


def _longest(block: Any) -> Any | None:
    """The longest reduction axis of a block that reduces one term at a time."""
    if not _terms_matter(block):
        return None
    axes = [a for a in block.iter_vars if int(a.iter_type) == 2 and constant(a.dom.extent) is not None]
    return max(axes, key=lambda axis: int(axis.dom.extent), default=None)


def _last_spatial(block: Any) -> Any | None:
    axes = [a for a in block.iter_vars if int(a.iter_type) == 0 and (constant(a.dom.extent) or 1) > 1]
    return axes[-1] if axes else None


def _terms(module: Any, random: Random, dropped: Callable[[Any, int], Any], least: int = 1) -> Any | None:
    """Leave those terms of one reduction out. Of a maximum only where no softmax makes it indifferent."""
    soft = bool(_calls(module) & {"exp", "exp2"})

    def without(block: Any) -> Any | None:
        axis = _longest(block)
        if axis is None or int(axis.dom.extent) < least or (soft and not _sums(block)):
            return None
        own, _ = _own_and_term(block.body)
        return _with_value(block, _select(dropped(axis.var, int(axis.dom.extent)), own, block.body.value))

    return _edit(module, random, without)


def _unwritten(module: Any, random: Random, skipped: Callable[[Any, int], Any]) -> Any | None:
    outputs = _written(module)

    def kept(block: Any) -> Any | None:
        import tvm

        store = block.body
        if str(store.buffer.name) not in outputs or _reduces(block):
            return None
        place = next((d for d in reversed(range(len(store.indices))) if constant(store.buffer.shape[d]) != 1), None)
        if place is None:
            return None
        before = tvm.tirx.BufferLoad(store.buffer, store.indices)
        skip = skipped(store.indices[place], int(store.buffer.shape[place]))
        return _with_value(block, _select(skip, before, store.value))

    return _edit(module, random, kept)


def _index(module: Any, random: Random, chosen: Callable[[Any], bool], *, reductions: bool) -> Any | None:
    """One index of one load becomes 0, where there is a choice."""

    def zero(block: Any) -> Any | None:
        for load in _read(block):
            for place, index in enumerate(load.indices):
                if chosen(index) and (constant(load.buffer.shape[place]) or 2) > 1:
                    indices = [*load.indices]
                    indices[place] = index * 0
                    return _with_value(block, _replaced(block.body.value, load, _at(load, indices)))
        return None

    return _edit(module, random, zero, reductions=reductions)


def _read(block: Any) -> list[Any]:
    return [load for load in loads(block.body.value) if str(load.buffer.name) != str(block.body.buffer.name)]


def _at(load: Any, indices: list[Any]) -> Any:
    import tvm

    return tvm.tirx.BufferLoad(load.buffer, indices)


def _select(condition: Any, one: Any, other: Any) -> Any:
    import tvm

    return tvm.tirx.Select(condition, one, other)


def _replaced(expression: Any, old: Any, new: Any) -> Any:
    """An expression with one of its parts replaced, wherever that very part stands."""
    import tvm

    if expression.same_as(old):
        return new
    holder = tvm.tirx.Evaluate(expression)
    swap = tvm.tirx.stmt_functor.ir_transform(holder, None, lambda node: new if node.same_as(old) else None, None)
    return swap.value


def _shifted(expression: Any, load: Any, variable: Any, index: Any) -> Any:
    indices = [index if kind(i) == "Var" and i.same_as(variable) else i for i in load.indices]
    return _replaced(expression, load, _at(load, indices))


def _uncast(expression: Any) -> Any:
    while kind(expression) == "Cast":
        expression = expression.value
    return expression


def _chooses(node: Any) -> bool:
    return kind(node) == "Select" or (kind(node) == "Call" and operator(node) == "if_then_else")


def _expressions(expression: Any) -> Iterator[Any]:
    yield expression
    for child in children(expression):
        yield from _expressions(child)


def _calls(module: Any) -> set[str]:
    """Names of what a module calls."""
    import tvm

    found: set[str] = set()

    def visit(node: Any) -> None:
        if kind(node) == "Call":
            found.add(operator(node))

    tvm.tirx.stmt_functor.post_order_visit(main(module).body, visit)
    return found


def _arguments(module: Any) -> set[str]:
    return {str(buffer.name) for buffer in main(module).buffer_map.values()}


def _written(module: Any) -> set[str]:
    """Arguments that are stored to."""
    import tvm

    found: set[str] = set()

    def visit(node: Any) -> None:
        if kind(node) == "BufferStore":
            found.add(str(node.buffer.name))

    tvm.tirx.stmt_functor.post_order_visit(main(module).body, visit)
    return found & _arguments(module)
