"""What makes a workload the same as another: the canonical text of its program, and the id that follows from it.

Two modules have one text when they differ only in names, in the order or the unused rest of their arguments, in the
widths of integers (int32 or int64), in the values of floating-point constants, and in dimensions, loops and iterators
of extent 1. The text is ours alone, so that ids are the same in every process, on every machine, and under every
version of TVM that gives the same program.
"""

from typing import Any, Final

from littledragon.compiler.features import constant, kind, main, operator
from littledragon.schemas.ids import content_id

_SYMBOLS: Final = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%", "Div": "/", "Mod": "%%"},
    **{"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!=", "And": "&", "Or": "|"},
    **{"Min": "min", "Max": "max"},
}
_WIDTHS: Final = {"int32": "int", "int64": "int"}


def workload_id(module: Any) -> str:
    """The id of a module's workload: `w-` and a hash of `canonical`.

    Raises:
        ValueError: the module has no function `main`.
    """
    return content_id("w", {"program": canonical(module)})


def canonical(module: Any) -> str:
    """The canonical text of the function `main`: equal for two modules exactly when they are one workload.

    Buffers and variables are numbered as they are met; a buffer's type, shape and scope stand at its first use.

    Raises:
        ValueError: the module has no function `main`.
    """
    function = main(module)
    writer = _Writer(
        {function.buffer_map[parameter] for parameter in function.params if parameter in function.buffer_map}
    )
    writer.statement(function.body)
    return "".join(writer.parts)


class _Writer:
    """The text so far, and the numbers of what has been met."""

    def __init__(self, arguments: set[Any]) -> None:
        self.parts: list[str] = []
        self.arguments = arguments
        self.variables: dict[Any, str] = {}
        self.numbered = 0
        self.buffers: dict[Any, tuple[str, tuple[bool, ...]]] = {}

    def statement(self, node: Any) -> None:
        name, write = kind(node), self.parts.append
        if name == "SeqStmt":
            for child in node.seq:
                self.statement(child)
        elif name == "For":
            extent = constant(node.extent)
            if extent == 1 and constant(node.min) == 0 and node.thread_binding is None:
                self.variables[node.loop_var] = "0"
                self.statement(node.body)
                return
            thread = "" if node.thread_binding is None else str(node.thread_binding.thread_tag)
            start, trips = self.expression(node.min), self.expression(node.extent)
            how = f"{int(node.kind)}{thread}{_notes(node.annotations)}"
            write(f"for {self._number(node.loop_var)} {start} {trips} {how}{{")
            self.statement(node.body)
            write("}")
        elif name == "SBlockRealize":
            self._block(node)
        elif name == "BufferStore":
            place = self._access(node.buffer, node.indices)
            write(f"{place}={self.expression(node.value)};")
        elif name == "IfThenElse":
            write(f"if {self.expression(node.condition)}{{")
            self.statement(node.then_case)
            write("}else{")
            if node.else_case is not None:
                self.statement(node.else_case)
            write("}")
        elif name in ("AllocBuffer", "DeclBuffer"):
            if hasattr(node, "body"):
                self.statement(node.body)
        elif name in ("Bind", "LetStmt"):
            value = self.expression(node.value)
            write(f"let {self._number(node.var)}={value};")
            if hasattr(node, "body"):
                self.statement(node.body)
        elif name == "Evaluate":
            write(f"{self.expression(node.value)};")
        else:  # not met in what is extracted; its text still tells it from others
            write(f"{name}{{{node}}}")

    def _block(self, realize: Any) -> None:
        node, axes = realize.block, []
        for axis, value in zip(node.iter_vars, realize.iter_values, strict=True):
            bound = self.expression(value)
            if constant(axis.dom.extent) == 1 and constant(axis.dom.min) == 0:
                self.variables[axis.var] = "0"
            else:
                dom = f"{self.expression(axis.dom.min)}:{self.expression(axis.dom.extent)}"
                axes.append(f"{self._number(axis.var)} {int(axis.iter_type)} {dom}={bound}")
        regions = [self._matched(match) for match in node.match_buffers]
        when = self.expression(realize.predicate)
        guard = "" if when in ("1", "True") else f" if {when}"
        self.parts.append(f"block {','.join((*axes, *regions))}{guard}{_notes(node.annotations)}{{")
        if node.init is not None:
            self.parts.append("init{")
            self.statement(node.init)
            self.parts.append("}")
        self.statement(node.body)
        self.parts.append("}")

    def _matched(self, match: Any) -> str:
        """A buffer that stands for a region of another one."""
        starts = [self.expression(part.min) for part in match.source.region]
        extents = [self.expression(part.extent) for part in match.source.region]
        name = self._access(match.source.buffer, [part.min for part in match.source.region])
        view = self.buffers.setdefault(match.buffer, (f"b{len(self.buffers)}", (True,) * len(match.buffer.shape)))[0]
        shape = "x".join(self.expression(extent) for extent in match.buffer.shape)
        return f"{view} {shape} is {name} {starts} {extents}"

    def _number(self, variable: Any) -> str:
        if variable not in self.variables:
            self.variables[variable] = f"v{self.numbered}"
            self.numbered += 1
        return self.variables[variable]

    def _access(self, buffer: Any, indices: Any) -> str:
        """An element of a buffer, its dimensions of 1 left out; with what the buffer is, when it is met first."""
        known = self.buffers.get(buffer)
        about = ""
        if known is None:
            shape = [constant(extent) for extent in buffer.shape]
            known = self.buffers[buffer] = f"b{len(self.buffers)}", tuple(extent != 1 for extent in shape)
            extents = "x".join(str(extent) for extent in shape if extent != 1)
            role = "a" if buffer in self.arguments else "t"
            about = f"<{role} {_dtype(str(buffer.dtype))} {extents} {buffer.scope()}>"
        name, kept = known
        places = [self.expression(index) for index, keep in zip(indices, kept, strict=True) if keep]
        return f"{name}{about}[{','.join(places)}]"

    def expression(self, node: Any) -> str:
        name = kind(node)
        if name in ("Var", "SizeVar"):
            return self._number(node)
        if name == "IntImm":
            return str(int(node.value))
        if name == "FloatImm":
            return "f"
        if name == "BufferLoad":
            return self._access(node.buffer, node.indices)
        if name in _SYMBOLS:
            return _binary(_SYMBOLS[name], self.expression(node.a), self.expression(node.b))
        if name == "Cast":
            inner, to = self.expression(node.value), _dtype(str(node.dtype))
            return inner if to == _dtype(str(node.value.dtype)) else f"{to}({inner})"
        if name == "Call":
            arguments = ",".join(self.expression(a) if hasattr(a, "dtype") else str(a) for a in node.args)
            return f"{operator(node)}:{_dtype(str(node.dtype))}({arguments})"
        if name == "Select":
            parts = (node.condition, node.true_value, node.false_value)
            return f"select({','.join(map(self.expression, parts))})"
        if name == "Not":
            return f"!({self.expression(node.a)})"
        if name == "Let":
            value = self.expression(node.value)
            return f"let({self._number(node.var)}={value},{self.expression(node.body)})"
        return f"{name}({node})"


def _binary(symbol: str, left: str, right: str) -> str:
    """The expression, where a missing iterator (0) or a factor of 1 leaves something simpler."""
    if symbol in "+-" and right == "0":
        return left
    if symbol == "+" and left == "0":
        return right
    if symbol == "*" and "0" in (left, right):
        return "0"
    if symbol in ("*", "//") and right == "1":
        return left
    if symbol == "*" and left == "1":
        return right
    if symbol in ("//", "%") and left == "0":
        return "0"
    return f"({left}{symbol}{right})"


def _dtype(name: str) -> str:
    return _WIDTHS.get(name, name)


def _notes(annotations: Any) -> str:
    return "".join(f"@{key}={annotations[key]}" for key in sorted(map(str, annotations))) if len(annotations) else ""
