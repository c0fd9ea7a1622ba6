"""F(M): what a TensorIR module is made of, read off its syntax tree.

Works on the module as extracted (M0, for prompts) and on a scheduled one (for facts about what a schedule
did). The result is plain JSON; `schemas/features.py` says what each key means. Names are those of the module.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Div": "/", "Mod": "%"}
_COMPARE = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}
_LOGIC = {"And": "and", "Or": "or"}
_PAIR = {"Min": "min", "Max": "max"}
_PRECEDENCE = {
    "Or": 0,
    "And": 1,
    **dict.fromkeys(_COMPARE, 2),
    **dict.fromkeys(_BINARY, 4),
    **dict.fromkeys(("Add", "Sub"), 3),
}
_ARITHMETIC = frozenset({*_BINARY, *_COMPARE, *_PAIR})
_NOT_ARITHMETIC = frozenset({"if_then_else", "likely", "tvm_access_ptr", "address_of", "reinterpret", "large_uint_imm"})


def features(module: Any) -> Json:
    """F of the function `main` of an IRModule; see `schemas.features.FEATURES` for the keys.

    Runs where TVM is imported.

    Raises:
        ValueError: the module has no function `main`, or a buffer's shape is not constant.
    """
    return _summary(_walked(module))


@dataclass(frozen=True)
class Reading:
    """F of a module, and what else was seen on the way."""

    facts: Json
    distinct: bool
    """Whether no two things in sight of each other have one name, so that TVM prints them by their own. Buffers are
    seen everywhere, loops by what is inside them, iterators by their block."""
    nodes: list[Any]
    """The syntax-tree node of each block, in the order of `facts["blocks"]`."""


def read(module: Any) -> Reading:
    """F, with what else is seen in the same walk.

    Raises:
        ValueError: as `features`.
    """
    walk = _walked(module)
    return Reading(_summary(walk), _distinct(walk), walk.nodes)


def _walked(module: Any) -> "_Walk":
    walk = _Walk()
    function = main(module)
    for parameter in function.params:
        walk.add_buffer(function.buffer_map[parameter], "input")
    walk.statement(function.body, (), ())
    return walk


def _distinct(walk: "_Walk") -> bool:
    if walk.renamed or not all(name.isidentifier() for name in walk.buffers):
        return False
    for loop in walk.loops:
        if loop["name"] in walk.buffers or any(walk.loops[outer]["name"] == loop["name"] for outer in loop["outer"]):
            return False
    for block in walk.blocks:
        names = {axis["name"] for axis in block["iterators"]}
        seen = {walk.loops[index]["name"] for index in block["loops"]}
        if len(names) < len(block["iterators"]) or names & seen or names & walk.buffers.keys():
            return False
    return True


def main(module: Any) -> Any:
    """The module's function `main`.

    Raises:
        ValueError: there is none.
    """
    for name, function in module.functions.items():
        if str(name.name_hint) == "main":
            return function
    raise ValueError("module: no function named 'main'")


def kind(node: Any) -> str:
    """The class name of a syntax-tree node, for example `BufferLoad`."""
    return type(node).__name__


def children(expression: Any) -> list[Any]:
    """The sub-expressions of an expression, in order; the indices of a load are among them."""
    name = kind(expression)
    if name in _ARITHMETIC or name in _LOGIC:
        return [expression.a, expression.b]
    if name == "BufferLoad":
        return list(expression.indices)
    if name == "Call":
        return [a for a in expression.args if hasattr(a, "dtype")]
    if name == "Select":
        return [expression.condition, expression.true_value, expression.false_value]
    if name in ("Cast", "Broadcast"):
        return [expression.value]
    if name == "Not":
        return [expression.a]
    if name == "Let":
        return [expression.value, expression.body]
    if name == "Ramp":
        return [expression.base]
    return []


def loads(expression: Any) -> Iterator[Any]:
    """Every `BufferLoad` in an expression, outermost first, those in indices too."""
    if kind(expression) == "BufferLoad":
        yield expression
    for child in children(expression):
        yield from loads(child)


def text(expression: Any) -> str:
    """An index expression as Python would write it, integers without their types."""
    name = kind(expression)
    if name in ("Var", "SizeVar"):
        return str(expression.name)
    if name in ("IntImm", "FloatImm"):
        return str(expression.value)
    if name in _BINARY or name in _COMPARE or name in _LOGIC:
        symbol = (_BINARY | _COMPARE | _LOGIC)[name]
        own = _PRECEDENCE[name]
        return f"{_group(expression.a, own)} {symbol} {_group(expression.b, own + 1)}"
    if name in _PAIR:
        return f"{_PAIR[name]}({text(expression.a)}, {text(expression.b)})"
    if name == "BufferLoad":
        return f"{expression.buffer.name}[{', '.join(text(i) for i in expression.indices)}]"
    if name == "Cast":
        return text(expression.value)
    inner = ", ".join(text(child) for child in children(expression))
    return f"{operator(expression) if name == 'Call' else name}({inner})"


def operator(call: Any) -> str:
    """The short name of what a `Call` calls, for example `exp` or `if_then_else`."""
    return str(getattr(call.op, "name", None) or getattr(call.op, "name_hint", call.op)).rsplit(".", 1)[-1]


def constant(expression: Any) -> int | None:
    """The integer that an expression is, or None."""
    return int(expression.value) if kind(expression) == "IntImm" else expression if type(expression) is int else None


def _group(expression: Any, outer: int) -> str:
    inner = text(expression)
    return f"({inner})" if _PRECEDENCE.get(kind(expression), 9) < outer else inner


@dataclass
class _Walk:
    """What has been seen so far, in the order of the syntax tree."""

    buffers: dict[str, Json] = field(default_factory=dict)
    loops: list[Json] = field(default_factory=list)
    blocks: list[Json] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)
    """Buffer → name; a matched sub-region carries the name of the buffer that it lies in."""
    nodes: list[Any] = field(default_factory=list)
    """The node of each block."""
    renamed: bool = False
    """Whether two buffers have one name."""
    bound: set[Any] = field(default_factory=set)
    """Variables that stand for values computed from loads."""

    def add_buffer(self, buffer: Any, role: str) -> None:
        first, tries = str(buffer.name).replace(".", "_"), 0  # as TVM prints it
        name = first
        while name in self.buffers:
            tries += 1
            name, self.renamed = f"{first}_{tries}", True
        shape = [constant(extent) for extent in buffer.shape]
        if None in shape:
            raise ValueError(f"buffer {name}: its shape is not constant")
        self.names[buffer] = name
        self.buffers[name] = {
            "name": name,
            "shape": shape,
            "dtype": str(buffer.dtype),
            "scope": str(buffer.scope()),
            "role": role,
        }

    def statement(self, node: Any, loops: tuple[int, ...], outer: tuple[int, ...]) -> None:
        """Visit a statement under these loops and inside these blocks (positions in the lists)."""
        name = kind(node)
        if name == "SeqStmt":
            for child in node.seq:
                self.statement(child, loops, outer)
        elif name == "For":
            self.loops.append(_loop(len(self.loops), node, loops))
            self.statement(node.body, (*loops, len(self.loops) - 1), outer)
        elif name == "SBlockRealize":
            self.block(node, loops, outer)
        elif name == "IfThenElse":
            self.statement(node.then_case, loops, outer)
            if node.else_case is not None:
                self.statement(node.else_case, loops, outer)
        elif name in ("AllocBuffer", "DeclBuffer"):
            self.add_buffer(node.buffer, "intermediate")
        elif name == "Bind" and any(True for _ in self.values(node.value)):
            self.bound.add(node.var)
        if name in ("AttrStmt", "While", "AllocBuffer", "DeclBuffer", "LetStmt") and hasattr(node, "body"):
            self.statement(node.body, loops, outer)
        if outer and name in ("BufferStore", "Bind", "Evaluate"):
            block = self.blocks[outer[-1]]
            block["operators"] = list(dict.fromkeys([*block["operators"], *_operators(node.value)]))
            block["flops"] += block["iterations"] * self._inner(block, loops) * self.operations(node.value)

    def _inner(self, block: Json, loops: tuple[int, ...]) -> int:
        """Trips of the loops that lie inside the block around a statement."""
        trips = 1
        for index in loops[len(block["loops"]) :]:
            trips *= self.loops[index]["extent"] or 1
        return trips

    def block(self, realize: Any, loops: tuple[int, ...], outer: tuple[int, ...]) -> None:
        node = realize.block
        for buffer in node.alloc_buffers:
            self.add_buffer(buffer, "intermediate")
        for match in node.match_buffers:
            self.names[match.buffer] = self.names.get(match.source.buffer, str(match.source.buffer.name))
        if not outer and not node.iter_vars and str(node.name_hint) == "root":
            self.statement(node.body, loops, ())
            return
        iterators = [
            {
                "name": str(axis.var.name),
                "kind": {0: "spatial", 2: "reduce"}.get(int(axis.iter_type), "opaque"),
                "extent": constant(axis.dom.extent),
                "binding": text(value),
            }
            for axis, value in zip(node.iter_vars, realize.iter_values, strict=True)
        ]
        self.nodes.append(node)
        iterations = math.prod(constant(axis.dom.extent) or 1 for axis in node.iter_vars)
        inner = _innermost(node.iter_vars)
        if outer:
            iterations *= self.blocks[outer[-1]]["iterations"]
        self.blocks.append(
            {
                "name": str(node.name_hint),
                "loops": list(loops),
                "iterators": iterators,
                "iterations": iterations,
                "reads": [self.region(r, inner) for r in node.reads],
                "writes": [self.region(r, inner) for r in node.writes],
                "producers": [],
                "has_init": node.init is not None,
                "operators": [],
                "flops": 0,
                "annotations": _annotations(node.annotations),
            }
        )
        self.statement(node.body, loops, (*outer, len(self.blocks) - 1))

    def region(self, region: Any, inner: Any) -> Json:
        indices = []
        for part in region.region:
            start, extent = text(part.min), constant(part.extent)
            first = constant(part.min)
            end = f"{start} + {text(part.extent)}" if first is None or extent is None else str(first + extent)
            indices.append(start if extent == 1 else f"{start}:{end}")
        indirect = any(True for part in region.region for _ in loads(part.min))
        buffer = self.names.get(region.buffer, str(region.buffer.name))
        stride = None if indirect else _stride(region, inner)
        access = "gathered" if indirect else {None: "irregular", 0: "broadcast", 1: "coalesced"}.get(stride, "strided")
        return {"buffer": buffer, "indices": indices, "indirect": indirect, "access": access, "stride": stride}

    def values(self, expression: Any) -> Iterator[Any]:
        """Loads, and variables that stand for loaded values, in an expression."""
        yield from loads(expression)
        if kind(expression) == "Var" and expression in self.bound:
            yield expression
        for child in children(expression):
            yield from (v for v in self.values(child) if kind(v) == "Var")

    def operations(self, expression: Any) -> int:
        """Arithmetic operations on loaded values; index arithmetic, casts and selections do not count."""
        name = kind(expression)
        if name == "BufferLoad":
            return 0
        if name == "Select" or (name == "Call" and operator(expression) == "if_then_else"):
            condition, left, right = children(expression)
            return self.operations(condition) + max(self.operations(left), self.operations(right))
        counts = name in _ARITHMETIC or (name == "Call" and operator(expression) not in _NOT_ARITHMETIC)
        own = int(counts and any(True for _ in self.values(expression)))
        return own + sum(self.operations(child) for child in children(expression))


def _innermost(axes: Any) -> Any:
    """The last spatial iterator that has more than one value: neighbouring threads take its neighbouring values."""
    spatial = [axis.var for axis in axes if int(axis.iter_type) == 0 and constant(axis.dom.extent) != 1]
    return spatial[-1] if spatial else None


def _stride(region: Any, inner: Any) -> int | None:
    """Elements between what neighbours along an iterator touch, in row-major order; None where that is not constant."""
    total, step = 0, 1
    for part, extent in zip(reversed(region.region), reversed(region.buffer.shape), strict=True):
        if (slope := _slope(part.min, inner)) is None:
            return None
        total, step = total + slope * step, step * (constant(extent) or 1)
    return total


def _slope(expression: Any, variable: Any) -> int | None:
    """By how much an index grows with a variable; None where that is not constant."""
    name = kind(expression)
    if name in ("Var", "SizeVar"):
        return int(variable is not None and expression.same_as(variable))
    if name == "Cast":
        return _slope(expression.value, variable)
    slopes = [_slope(child, variable) for child in children(expression)]
    if not any(slope != 0 for slope in slopes):
        return 0
    if name in ("Add", "Sub") and None not in slopes:
        first, second = (slope or 0 for slope in slopes)
        return first + second if name == "Add" else first - second
    if name == "Mul" and None not in slopes:
        left, right = constant(expression.a), constant(expression.b)
        if right is not None:
            return (slopes[0] or 0) * right
        if left is not None:
            return left * (slopes[1] or 0)
    return None


def _loop(index: int, node: Any, outer: tuple[int, ...]) -> Json:
    kinds = {0: "serial", 1: "parallel", 2: "vectorized", 3: "unrolled", 4: "thread"}
    thread = node.thread_binding
    return {
        "index": index,
        "name": str(node.loop_var.name),
        "extent": constant(node.extent),
        "kind": kinds[int(node.kind)],
        "thread": str(thread.thread_tag) if thread is not None else None,
        "outer": list(outer),
        "annotations": _annotations(node.annotations),
    }


def _operators(expression: Any) -> Iterator[str]:
    """Names of the operators that make a value, outermost first, index arithmetic left out."""
    name = kind(expression)
    if name == "BufferLoad":
        return
    if name == "Call":
        yield operator(expression)
    elif name == "Cast":
        yield f"cast {expression.dtype}"
    elif name in _ARITHMETIC or name in _LOGIC or name in ("Select", "Not"):
        yield name.lower()
    for child in children(expression):
        yield from _operators(child)


def _annotations(annotations: Any) -> Json:
    """Annotations as JSON: integers stay integers, all else becomes text."""
    result: Json = {}
    for key, value in annotations.items():
        number = constant(value)
        result[str(key)] = number if number is not None else str(value)
    return dict(sorted(result.items()))


def _summary(walk: _Walk) -> Json:
    """Roles, producers, reduction axes and totals, once the whole tree has been seen."""
    writers: dict[str, list[str]] = {}
    for block in walk.blocks:
        for write in block["writes"]:
            writers.setdefault(write["buffer"], []).append(block["name"])
    for name, buffer in walk.buffers.items():
        if buffer["role"] == "input" and name in writers:
            buffer["role"] = "output"
    for block in walk.blocks:
        sources = [w for read in block["reads"] for w in writers.get(read["buffer"], [])]
        block["producers"] = [w for w in dict.fromkeys(sources) if w != block["name"]]
    flops = sum(block["flops"] for block in walk.blocks)
    size = sum(_bytes(b) for b in walk.buffers.values() if b["role"] != "intermediate")
    return {
        "loops": walk.loops,
        "blocks": walk.blocks,
        "buffers": list(walk.buffers.values()),
        "reductions": [
            {"block": block["name"], "axis": axis["name"], "extent": axis["extent"]}
            for block in walk.blocks
            for axis in block["iterators"]
            if axis["kind"] == "reduce"
        ],
        "flops": flops,
        "bytes": size,
        "intensity": round(flops / size, 6) if size else 0.0,
    }


def numpy_dtype(dtype: str) -> Any:
    """The numpy dtype of a TVM dtype; bfloat16 and the like come from ml_dtypes.

    Raises:
        TypeError: there is none.
    """
    import ml_dtypes
    import numpy as np

    return np.dtype(getattr(ml_dtypes, dtype, None) or dtype)


def _bytes(buffer: Json) -> int:
    return int(math.prod(buffer["shape"]) * numpy_dtype(buffer["dtype"]).itemsize)
