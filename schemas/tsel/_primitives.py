"""Every schedule primitive of TVM 0.25 that a trace may hold: types and ranges of its parts, in one table.

Source: the instruction traits in TVM's src/s_tir/schedule/primitive/*.cc. Ranges are ours where TVM checks none.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

SlotType = Literal[
    "B",  # a block
    "L",  # a loop
    "BL",  # a block or a loop
    "int",
    "flag",  # 0 or 1, as a boolean or an integer
    "str",
    "map",  # an index map
    "map?",  # an index map or null
    "factor",  # a sampled variable, a number, or null for the one that follows from the others
    "value",  # an annotation's value: anything but blocks and loops
    "blocks",  # a list of blocks
    "ints",  # a list of integers
    "floats",  # a list of probabilities
]
Decision = Literal["tile", "index", "location"]
NAMED: Final = ("B", "L", "BL", "factor", "value")
"""Slots that take one name."""


NEEDED: Final = object()
"""The default of a slot that has none."""


@dataclass(frozen=True)
class Slot:
    """One input or attribute.

    many: the last input, repeated at least once. plain: booleans are not IntImm. empty: none of many, an empty list.
    lists: a list of blocks may stand here too.
    default: the value of a graph that a text may leave out. words: what `line` calls the values 0, 1, …
    """

    name: str
    type: SlotType
    low: int = 0
    high: int = 1 << 20
    pattern: re.Pattern[str] | None = None
    many: bool = False
    plain: bool = False
    empty: bool = False
    lists: bool = False
    default: Any = NEEDED
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Primitive:
    """One kind of instruction.

    outputs: letters of the signature; a star means any number, `=` as many as factors.
    edit: what an edit that begins with it is called.
    word: what `line` calls it; empty for the kind in snake case.
    """

    inputs: tuple[Slot, ...]
    attrs: tuple[Slot, ...]
    outputs: str
    edit: str
    decision: Decision | None = None
    word: str = ""


_NAME: Final = re.compile(r"[\s\S]{0,512}")
_SCOPE: Final = re.compile(r"([a-z][a-z0-9_]*(\.[a-zA-Z0-9_-]+)*)?")
_THREAD: Final = re.compile(r"(blockIdx|threadIdx)\.[xyz]|vthread(\.[xyz])?|cthread")
_SIDES: Final = re.compile(r"read|write")
_DTYPE: Final = re.compile(r"[a-z][a-z0-9_]{1,31}")

_INT32: Final = (1 << 31) - 1
_INT64: Final = (1 << 63) - 1

_BLOCK = Slot("block", "B")
_LOOP = Slot("loop", "L")
_TARGET = Slot("target", "BL")
_LOOPS = Slot("loops", "L", many=True)
_FACTORS = Slot("factors", "factor", low=1, high=_INT32, many=True)
_MAP = Slot("index_map", "map")
_BUFFER = Slot("buffer_index", "int", high=1023)
_SIDE = Slot("buffer_index_type", "int", high=1, words=("read", "write"))
_STORAGE = Slot("storage_scope", "str", pattern=_SCOPE)
_KEEP_UNIT = Slot("preserve_unit", "flag", default=1)
_KEEP_UNITS = Slot("preserve_unit", "flag", default=True)
_POSITION = Slot("index", "int", low=-2, default=-1)
_KEY = Slot("key", "str", pattern=_NAME)
_N = Slot("n", "int", low=2, high=64)

PRIMITIVES: Final[dict[str, Primitive]] = {
    # sampling
    "SampleCategorical": Primitive(
        (),
        (Slot("candidates", "ints", low=-(1 << 31), high=_INT32), Slot("probs", "floats")),
        "E",
        "sample",
        "index",
        word="categorical",
    ),
    "SamplePerfectTile": Primitive(
        (_LOOP,),
        (_N, Slot("max_innermost_factor", "int", low=-1, high=_INT32, default=64)),
        "E=",
        "tile",
        "tile",
        word="tile",
    ),
    "SamplePartitionedTile": Primitive(
        (_LOOP,),
        (_N, Slot("partition_pos", "int", high=64), Slot("innerpart_factor", "int", low=1, high=_INT32)),
        "E=",
        "tile",
        "tile",
        word="partitioned_tile",
    ),
    "SampleComputeLocation": Primitive((_BLOCK,), (), "L", "compute_at", "location", word="location"),
    # looking up
    "GetSBlock": Primitive(
        (),
        (Slot("name", "str", pattern=_NAME), Slot("func_name", "str", pattern=_NAME, default="main")),
        "B",
        "lookup",
        word="block",
    ),
    "GetLoops": Primitive((_BLOCK,), (), "L*", "lookup", word="loops"),
    "GetChildBlocks": Primitive((_TARGET,), (), "B*", "lookup", word="children"),
    "GetProducers": Primitive((_BLOCK,), (), "B*", "lookup", word="producers"),
    "GetConsumers": Primitive((_BLOCK,), (), "B*", "lookup", word="consumers"),
    "GetOutputBlocks": Primitive((_BLOCK,), (), "B*", "lookup", word="output_blocks"),
    # loops
    "Fuse": Primitive((_LOOPS,), (_KEEP_UNIT,), "L", "fuse"),
    "Merge": Primitive((_LOOPS,), (), "L", "fuse"),
    "Split": Primitive(
        (_LOOP, _FACTORS),
        (
            Slot("preserve_unit", "flag", plain=True, default=True),
            Slot("disable_predication", "flag", plain=True, default=False),
        ),
        "L=",
        "split",
    ),
    "LoopPartition": Primitive((_LOOP, _FACTORS), (_KEEP_UNIT,), "L*", "split"),
    "Reorder": Primitive((Slot("loops", "L", many=True, empty=True),), (), "", "reorder"),
    "ReorderBlockIterVar": Primitive((_BLOCK, Slot("new_order", "ints", high=63, empty=True)), (), "", "reorder"),
    "AddUnitLoop": Primitive((_TARGET,), (), "L", "fuse"),
    "Parallel": Primitive((_LOOP,), (), "", "bind"),
    "Vectorize": Primitive((_LOOP,), (), "", "bind"),
    "Unroll": Primitive((_LOOP,), (), "", "bind"),
    "Bind": Primitive((_LOOP,), (Slot("thread_axis", "str", pattern=_THREAD),), "", "bind"),
    # moving and caching
    "CacheRead": Primitive((_BLOCK, Slot("consumers", "blocks", default=())), (_BUFFER, _STORAGE), "B", "cache"),
    "CacheWrite": Primitive((_BLOCK, Slot("consumers", "blocks", default=())), (_BUFFER, _STORAGE), "B", "cache"),
    "CacheInplace": Primitive((_BLOCK,), (_BUFFER, _STORAGE), "B*", "cache"),
    "CacheIndex": Primitive((_BLOCK,), (_STORAGE, Slot("cse_thresh", "int")), "B*", "cache"),
    "ReindexCacheRead": Primitive((_BLOCK, _MAP), (_BUFFER, _STORAGE), "B", "cache"),
    "ReindexCacheWrite": Primitive((_BLOCK, _MAP), (_BUFFER, _STORAGE), "B", "cache"),
    "ReadAt": Primitive((_LOOP, _BLOCK), (_BUFFER, _STORAGE), "B", "cache"),
    "WriteAt": Primitive((_LOOP, _BLOCK), (_BUFFER, _STORAGE), "B", "cache"),
    "SetScope": Primitive((_BLOCK,), (_BUFFER, _STORAGE), "", "cache"),
    "StorageAlign": Primitive(
        (_BLOCK,),
        (
            _BUFFER,
            Slot("axis", "int", low=-64, high=63),
            Slot("factor", "int", low=1),
            Slot("offset", "int", low=-1 << 20),
        ),
        "",
        "cache",
    ),
    "RollingBuffer": Primitive((_BLOCK,), (_BUFFER,), "", "cache"),
    "ComputeAt": Primitive((_BLOCK, _LOOP), (_KEEP_UNIT, _POSITION), "", "compute_at"),
    "ReverseComputeAt": Primitive((_BLOCK, _LOOP), (_KEEP_UNIT, _POSITION), "", "compute_at"),
    "ComputeInline": Primitive((_BLOCK,), (), "", "inline"),
    "ReverseComputeInline": Primitive((_BLOCK,), (), "", "inline"),
    "FuseReductionEpilogue": Primitive((_BLOCK, _BLOCK), (), "", "inline"),
    # layout
    "ReIndex": Primitive((_BLOCK,), (_BUFFER, _SIDE), "B", "layout", word="reindex"),
    "TransformLayout": Primitive(
        (_BLOCK, _MAP),
        (_BUFFER, _SIDE, Slot("pad_value", "map?", default=None), Slot("assume_injective", "flag", default=True)),
        "",
        "layout",
    ),
    "TransformBlockLayout": Primitive((_BLOCK,), (_MAP,), "", "layout"),
    "SetAxisSeparator": Primitive(
        (_BLOCK,), (_BUFFER, _SIDE, Slot("axis_separators", "ints", high=63, empty=True)), "", "layout"
    ),
    "PadEinsum": Primitive((_BLOCK,), (Slot("padding", "ints", empty=True),), "", "layout"),
    "DecomposePadding": Primitive((_BLOCK, _LOOP), (), "B", "layout"),
    # reductions
    "RFactor": Primitive((_LOOP,), (Slot("factor_axis", "int", low=-64, high=63),), "B", "reduction"),
    "DecomposeReduction": Primitive((_BLOCK, _LOOP), (), "B", "reduction"),
    # hardware intrinsics
    "Blockize": Primitive((Slot("target", "L", lists=True),), (_KEEP_UNITS,), "B", "tensorize"),
    "Tensorize": Primitive((_TARGET,), (Slot("intrin", "str", pattern=_NAME), _KEEP_UNITS), "", "tensorize"),
    # annotations
    "Annotate": Primitive((_TARGET, Slot("value", "value", low=-_INT64 - 1, high=_INT64)), (_KEY,), "", "annotate"),
    "Unannotate": Primitive((_TARGET,), (_KEY,), "", "annotate"),
    "AnnotateBufferAccess": Primitive((_BLOCK, _BUFFER, _SIDE, _MAP), (), "", "annotate"),
    "UnsafeSetDType": Primitive((_BLOCK,), (_BUFFER, Slot("dtype", "str", pattern=_DTYPE)), "", "annotate"),
    "UnsafeHideBufferAccess": Primitive(
        (_BLOCK, Slot("buf_type", "str", pattern=_SIDES), Slot("indices", "ints", high=1023, empty=True)),
        (),
        "",
        "annotate",
    ),
    # the boundary
    "EnterPostproc": Primitive((), (), "", "postproc"),
}

ANNOTATION_RANGES: Final[dict[str, tuple[int, int]]] = {
    "pragma_auto_unroll_max_step": (0, 8192),
    "pragma_unroll_explicit": (0, 1),
    "meta_schedule.cooperative_fetch": (1, 64),
    "meta_schedule.parallel": (0, 1 << 20),
    "meta_schedule.vectorize": (0, 4096),
    "meta_schedule.unroll_explicit": (0, 8192),
    "meta_schedule.unroll_implicit": (0, 8192),
    "meta_schedule.thread_extent_low_inclusive": (0, 1024),
    "meta_schedule.thread_extent_high_inclusive": (0, 1024),
    "warp_execution": (0, 1),
}
"""Values that TVM accepts without a check and that lowering would take minutes over, or that no device has."""

PRAGMAS: Final = frozenset({"pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_loop_partition_hint"})
"""The only pragmas that a trace may set. Lowering obeys a pragma, and some of them link foreign code into the
kernel (`pragma_import_llvm`, `pragma_import_c`) or change what its threads share."""
