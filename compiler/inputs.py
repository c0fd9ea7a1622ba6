"""The arguments of a kernel: what each may hold, and how to make it.

`specs` reads a module once, where TVM is imported; `make` needs numpy alone, and gives the same arrays for the
same specs, case and seed everywhere. An argument that a module uses as an index stays inside the table that it
indexes; an argument that divides, or whose name says that it scales, is positive; outputs are poisoned, so that
an element that a kernel forgets to write is seen.
"""

from typing import Any, Final

from littledragon.compiler.features import children, kind, loads, main, numpy_dtype, operator

Json = dict[str, Any]
Range = tuple[int, int]

CASES: Final = ("normal", "uniform", "sparse", "small integers", "ends")
"""What `case` chooses: bell-shaped around 0; uniform and positive; half zeros, the rest of either sign over seven
powers of two, indices at the ends of their range; whole numbers from -2 to 2, on which float32 sums are exact;
small inside and large at both ends of every axis, where loops go wrong, every fourth row next to nothing."""

_POSITIVE_CALLS = frozenset({"sqrt", "rsqrt", "log", "log2", "log10"})


def specs(module: Any, features: Json) -> list[Json]:
    """One entry for each buffer argument of `main`, in order: name, shape, dtype, role, low, high.

    low and high are the inclusive bounds of an index, null for other roles. Runs where TVM is imported.
    """
    stores, variables = _visited(main(module).body)
    copies = _copies(stores)
    indices: dict[str, Range] = {}
    positive: set[str] = set()
    for store in stores:
        for access in (store, *(load for value in (*store.indices, store.value) for load in loads(value))):
            # A scalar's one index is left out.
            for index, extent in zip(access.buffer.shape and access.indices, access.buffer.shape, strict=True):
                _index_ranges(index, (0, int(extent) - 1), copies, variables, indices)
        positive |= _positive(store.value, copies)
    result = []
    for buffer in features["buffers"]:
        if buffer["role"] == "intermediate":
            continue
        name, dtype = buffer["name"], buffer["dtype"]
        low, high = _held(indices[name], dtype) if name in indices else (None, None)
        role = (
            "output"
            if buffer["role"] == "output"
            else "index"
            if low is not None
            else "mask"
            if dtype == "bool"
            else "scale"
            if name in positive or (dtype.startswith(("float", "bfloat")) and "scale" in name)
            else "data"
        )
        result.append({"name": name, "shape": buffer["shape"], "dtype": dtype, "role": role, "low": low, "high": high})
    return result


def specs_of(module: str) -> list[Json]:
    """`specs` of a module as `tvm.ir.save_json`. Runs in a child."""
    import tvm

    from littledragon.compiler.features import features

    loaded = tvm.ir.load_json(module)
    return specs(loaded, features(loaded))


SHRINK: Final = 2.0**-3
"""What floats are multiplied by, once for each step of `shrink`: a power of two, so that little of them is lost."""


def make(specs: list[Json], case: int, seed: int, shrink: int = 0) -> list[Any]:
    """The arrays of one numerical case, one for each spec, in order; see `CASES`.

    shrink: how often floating-point data is made smaller by `SHRINK`; scales, masks and indices stay as they are.

    Raises:
        ValueError: there is no such case.
    """
    import numpy as np

    if not 0 <= case < len(CASES):
        raise ValueError(f"case {case}: choose 0 to {len(CASES) - 1}")
    made = [_fill(spec, case, np.random.default_rng([seed, case, place])) for place, spec in enumerate(specs)]
    if shrink:
        small = [spec["role"] == "data" and numpy_dtype(spec["dtype"]).kind not in "biu" for spec in specs]
        made = [
            array * array.dtype.type(SHRINK**shrink) if one else array for array, one in zip(made, small, strict=True)
        ]
    return made


def _fill(spec: Json, case: int, random: Any) -> Any:
    import numpy as np

    shape, dtype = tuple(spec["shape"]), numpy_dtype(spec["dtype"])
    if spec["role"] == "output":
        return _poison(shape, dtype)
    if spec["role"] == "mask":
        return random.random(shape) < (0.5, 0.9, 0.1, 0.5, 0.5)[case]
    if spec["role"] == "index":
        low, high = spec["low"], spec["high"]
        drawn = random.integers(low, high, shape, dtype=np.int64, endpoint=True)
        ends: Any = np.where(random.random(shape) < 0.5, low, high)
        return (ends if case == 2 else drawn).astype(dtype)
    if spec["role"] == "scale":
        values = np.exp2(random.integers(-7, -3, shape)) if case == 3 else random.uniform(2**-7, 2**-4, shape)
        return values.astype(dtype)
    if dtype.kind in "iu":
        return _integers(shape, dtype, case, random)
    return _floats(shape, case, random).astype(dtype)


def _floats(shape: tuple[int, ...], case: int, random: Any) -> Any:
    import numpy as np

    if case == 0:
        return random.standard_normal(shape)
    if case == 1:
        return random.uniform(0.0, 1.0, shape)
    if case == 2:
        magnitude = np.exp2(random.uniform(-6.0, 1.0, shape)) * random.choice([-1.0, 1.0], shape)
        return np.where(random.random(shape) < 0.5, 0.0, magnitude)
    if case == 3:
        return random.integers(-2, 2, shape, endpoint=True).astype(np.float64)
    return _ends(shape, random)


def _ends(shape: tuple[int, ...], random: Any) -> Any:
    """Inside, sums of products over the last axis are of size 1, where activations bend."""
    import numpy as np

    values = random.standard_normal(shape) / 2
    if shape:
        values /= shape[-1] ** 0.25
    for axis, extent in enumerate(shape):
        if extent > 1:
            lines = np.moveaxis(values, axis, 0)
            lines[[0, -1]] = random.choice([-6.0, 6.0], lines[[0, -1]].shape)
    if len(shape) > 1 and shape[-2] >= 4:
        values[..., 1::4, :] *= 2.0**-10 / max(1.0, np.abs(values[..., 1::4, :]).max())
    return values


def _integers(shape: tuple[int, ...], dtype: Any, case: int, random: Any) -> Any:
    """Whole range of the type for narrow and packed ones, a hundred either way for wide signed ones."""
    import numpy as np

    info = np.iinfo(dtype)
    wide = dtype.kind == "i" and info.bits > 16
    low, high = (-100, 100) if wide else (int(info.min), int(info.max))
    if case == 1:
        low = 0
    if case == 3:
        low, high = max(low, -2), 2 if dtype.kind == "i" else high
    drawn = random.integers(low, high, shape, dtype=dtype, endpoint=True)
    if case == 2:
        ends = np.where(random.random(shape) < 0.5, dtype.type(low), dtype.type(high))
        return np.where(random.random(shape) < 0.5, dtype.type(0), ends).astype(dtype)
    return drawn


def _poison(shape: tuple[int, ...], dtype: Any) -> Any:
    """NaN for floats, bytes of 0x7f for integers, True for booleans."""
    import numpy as np

    if dtype.kind in "iu":
        return np.full((*shape, dtype.itemsize), 0x7F, np.uint8).view(dtype).reshape(shape)
    return np.full(shape, True if dtype.kind == "b" else np.nan).astype(dtype)


def _visited(body: Any) -> tuple[list[Any], Any]:
    """Every `BufferStore` of a function's body, and an analyzer that knows the ranges of its loops and blocks."""
    import tvm

    stores: list[Any] = []
    variables = tvm.arith.Analyzer()

    def visit(node: Any) -> None:
        if kind(node) == "BufferStore":
            stores.append(node)
        elif kind(node) == "For":
            variables.bind(node.loop_var, tvm.ir.Range.from_min_extent(node.min, node.extent))
        elif kind(node) == "SBlock":
            for axis in node.iter_vars:
                variables.bind(axis.var, axis.dom)

    tvm.tirx.stmt_functor.post_order_visit(body, visit)
    return stores, variables


def _copies(stores: list[Any]) -> dict[str, str]:
    """Buffer → the buffer that it is an element-wise copy or cast of."""
    copies: dict[str, str] = {}
    for store in stores:
        value = _uncast(store.value)
        if kind(value) == "BufferLoad":
            copies[str(store.buffer.name)] = str(value.buffer.name)
    return copies


def _origin(name: str, copies: dict[str, str]) -> str:
    seen = {name}
    while name in copies and copies[name] not in seen:
        name = copies[name]
        seen.add(name)
    return name


def _uncast(expression: Any) -> Any:
    while kind(expression) == "Cast":
        expression = expression.value
    return expression


def _index_ranges(
    expression: Any, bounds: Range, copies: dict[str, str], variables: Any, found: dict[str, Range]
) -> None:
    """Narrow what each loaded value in an index may be, so that the index stays inside `bounds`.

    Sees through casts, clips, what is added, multiplied constants and division; a load elsewhere is free.
    """
    expression = _uncast(expression)
    name, (low, high) = kind(expression), bounds
    if name == "BufferLoad":
        origin = _origin(str(expression.buffer.name), copies)
        old = found.get(origin, bounds)
        found[origin] = (max(low, old[0]), min(high, old[1]))
        return
    if name not in ("Add", "Sub", "Mul", "FloorDiv", "Min", "Max", "Select", "Call"):
        return
    if name in ("Select", "Call"):
        for child in children(expression)[-2:]:
            _index_ranges(child, bounds, copies, variables, found)
        return
    for inner, other, swapped in ((expression.a, expression.b, False), (expression.b, expression.a, True)):
        least, most = _range(other, variables)
        if least is None or most is None:
            continue
        if name in ("Min", "Max"):
            narrowed = bounds
        elif name == "Add":
            narrowed = (low - least, high - most)
        elif name == "Sub":
            narrowed = (most - high, least - low) if swapped else (low + most, high + least)
        elif name == "Mul" and least == most > 0:
            narrowed = (-(-low // least), high // least)
        elif name == "FloorDiv" and not swapped and least == most > 0:
            narrowed = (low * least, high * least + least - 1)
        else:
            continue
        _index_ranges(inner, narrowed, copies, variables, found)


def _range(expression: Any, variables: Any) -> tuple[int | None, int | None]:
    """The least and the largest value of an expression that loads nothing, where they are known."""
    if any(True for _ in loads(expression)):
        return None, None
    bound = variables.const_int_bound(expression)
    least, most = int(bound.min_value), int(bound.max_value)
    return (least, most) if -(1 << 62) < least <= most < 1 << 62 else (None, None)


def _held(bounds: Range, dtype: str) -> Range:
    """The part of a range that an integer type can hold."""
    import numpy as np

    if numpy_dtype(dtype).kind not in "iu":
        return bounds
    info = np.iinfo(numpy_dtype(dtype))
    return max(bounds[0], int(info.min)), min(bounds[1], int(info.max))


def _positive(expression: Any, copies: dict[str, str]) -> set[str]:
    """Buffers whose bare elements divide, or stand under a root or logarithm, in an expression."""
    found: set[str] = set()
    if kind(expression) == "Div":
        found |= _bare(expression.b, copies)
    if kind(expression) == "Call" and operator(expression) in _POSITIVE_CALLS:
        found |= _bare(expression.args[0], copies)
    for child in children(expression):
        found |= _positive(child, copies)
    return found


def _bare(expression: Any, copies: dict[str, str]) -> set[str]:
    value = _uncast(expression)
    return {_origin(str(value.buffer.name), copies)} if kind(value) == "BufferLoad" else set()
