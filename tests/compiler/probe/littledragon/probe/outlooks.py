"""What `compiler.limits` and the search say of schedules before they are compiled. Functions that run in a child."""

from typing import Any


def of_a_sum(rows: int, columns: int, blocks: int, unrolled: int, virtual: int) -> dict[str, Any]:
    """Outlook of row sums: rows over blocks, virtual threads and threads, columns in a loop marked for unrolling."""
    from tvm import te
    from tvm.s_tir import Schedule

    from littledragon.compiler.limits import outlook

    x = te.placeholder((rows, columns), name="x")
    k = te.reduce_axis((0, columns), name="k")
    schedule = Schedule(te.create_prim_func([x, te.compute((rows,), lambda i: te.sum(x[i, k], k), name="y")]))
    row, column = schedule.get_loops(schedule.get_sblock("y"))
    block, copies, thread = schedule.split(row, [blocks, virtual, None])
    for loop, axis in ((block, "blockIdx.x"), (copies, "vthread.x"), (thread, "threadIdx.x")):
        schedule.bind(loop, axis)
    schedule.annotate(column, "pragma_auto_unroll_max_step", unrolled)
    found = outlook(schedule.mod)
    return {"span": found.span, "operations": found.operations}


def of_terms(terms: int, lanes: int) -> int:
    """Operations of an elementwise sum of so many products, its one loop bound to threads, so many elements in each."""
    from tvm import te
    from tvm.s_tir import Schedule

    from littledragon.compiler.limits import outlook

    x = te.placeholder((1 << 12,), name="x")
    y = te.compute(x.shape, lambda i: sum((x[i] * float(n + 2) for n in range(1, terms)), x[i] * 2.0), name="y")
    schedule = Schedule(te.create_prim_func([x, y]))
    thread, inner = schedule.split(*schedule.get_loops(schedule.get_sblock("y")), [None, lanes])
    schedule.bind(thread, "threadIdx.x")
    schedule.vectorize(inner)
    return outlook(schedule.mod).operations


def widths(module: str, target: dict[str, Any], rules: str, count: int) -> dict[str, list[list[int]]]:
    """For so many members, replayed: what `limits` says of the threads, and the threads that their loops have; of
    tilings at random, and of chosen ones."""
    from littledragon.compiler.evolution import WIDEST_OF

    search = _search(module, target, rules)
    found: dict[str, list[list[int]]] = {"random": [], "chosen": []}
    for number in range(20 * count):
        index = number % len(search.spaces)
        space = search.spaces[index]
        for name, choices in (("random", 1), ("chosen", WIDEST_OF)):
            trace = space.draw(search.random, choices)
            member = None if trace is None else search._member(index, trace)
            if member is not None and len(found[name]) < count:
                tiles = {at: [int(n) for n in trace.decisions[trace.insts[at]]] for at in space.limits.tiles}
                found[name].append([space.limits.width(tiles), _threads(member.schedule.mod)])
    return found


def ranked(module: str, target: dict[str, Any], rules: str, draws: int, count: int) -> dict[str, Any]:
    """Span and operations of the members of so many draws, the places of those that the search prefers, and of those
    that it leaves to the last."""
    import itertools

    search = _search(module, target, rules)
    pool = {member.key: member for member in itertools.islice(search.drawn(), draws) if member is not None}
    members = list(pool.values())
    outlooks = [search.outlook(member) for member in members]
    keys = list(pool)
    return {
        "spans": [one.span for one in outlooks],
        "operations": [one.operations for one in outlooks],
        "best": [keys.index(member.key) for member in search.best(members, count)],
        "late": sorted(keys.index(key) for key in search._late(members, count)),
    }


def operations(module: str, traces: list[str]) -> list[int]:
    """Of the schedules that these traces make."""
    import tvm
    from tvm.s_tir import Schedule, Trace

    from littledragon.compiler.limits import outlook

    found = []
    for trace in traces:
        schedule = Schedule(tvm.ir.load_json(module))
        Trace.apply_json_to_schedule(tvm.ir.load_json(trace), schedule)
        found.append(outlook(schedule.mod).operations)
    return found


def long(n: int, terms: int) -> dict[str, Any]:
    """Each element written `terms` times, in a loop that the program itself unrolls: all its schedules are as long."""
    import tvm

    text = f"""
@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer(({n},), "float32"), y: T.Buffer(({n}, {terms}), "float32")):
        T.func_attr({{"tirx.noalias": True}})
        for i in range({n}):
            with T.sblock("y"):
                v = T.axis.spatial({n}, i)
                for k in T.unroll({terms}):
                    y[v, k] = x[v]
"""
    return {"module": str(tvm.ir.save_json(tvm.script.from_source(text)))}


def _search(module: str, target: dict[str, Any], rules: str) -> Any:
    import tvm

    from littledragon.compiler import proposals
    from littledragon.compiler.evolution import Search

    context = proposals.tune_context(tvm.ir.load_json(module), target, rules, 1)
    return Search(context, context.generate_design_space(), target, 1)


def _threads(module: Any) -> int:
    """Threads of all blocks of a module's one kernel."""
    from tvm.tirx import For
    from tvm.tirx.stmt_functor import post_order_visit

    extents: dict[str, int] = {}

    def visit(node: Any) -> None:
        if isinstance(node, For) and node.thread_binding is not None:
            tag = str(node.thread_binding.thread_tag)
            if not tag.startswith("vthread"):
                extents[tag] = max(int(node.extent), extents.get(tag, 1))

    post_order_visit(module["main"].body, visit)
    total = 1
    for extent in extents.values():
        total *= extent
    return total
