"""Two ways from blocks to tasks, timed: this package's, and TVM's own. Both functions run in a child."""

import time
from typing import Any

from littledragon.compiler import lowering
from littledragon.compiler.zoo import Zoo, block_of
from littledragon.compiler.zoo.block import relax_module


def ours(zoo: Zoo, ids: list[str], target: dict[str, Any]) -> dict[str, float]:
    """Rows of these blocks: `{"tasks", "seconds"}` of CPU."""
    began = time.process_time()
    tasks = sum(len(lowering.rows(block_of(zoo, id), target)) for id in ids)
    return {"tasks": tasks, "seconds": time.process_time() - began}


def peers(zoo: Zoo, ids: list[str], target: dict[str, Any]) -> dict[str, float]:
    """A module for each configuration through MetaSchedule's `extract_tasks`, each task printed and saved."""
    import tvm
    from tvm import relax
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks

    passes = tvm.transform.Sequential(
        [
            relax.transform.FuseTransposeMatmul(),
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    where, tasks = tvm.target.Target(target), 0
    began = time.process_time()
    for id in ids:
        block = block_of(zoo, id)
        for case in block.cases:
            with where:
                module = passes(relax_module([block.build(**case.shape)]))
            for task in extract_tasks(module, where, params={}):
                tvm.ir.save_json(task.dispatched[0])
                task.dispatched[0].script()
                tasks += 1
    return {"tasks": tasks, "seconds": time.process_time() - began}
