"""MetaSchedule's own tuner on one workload, as its users run it: the peer that `dragon bench search` measures against.

Runs in a child.
"""

import os
import tempfile
import time
from typing import Any, Final

BATCH: Final = 64
"""TVM's candidates in one iteration: nothing is known of one before all of its batch have ended."""
MOST_SAID: Final = 300
"""Characters of why a trial has no latency."""


def tune(
    module: str, target: dict[str, Any], rules: str, trials: int, seed: int, build_timeout_s: float, batch: int = BATCH
) -> dict[str, Any]:
    """Run `meta_schedule.tune_tir` with its defaults: its builder, its runner, its search and its cost model.

    Args:
        module: M0, as `save_json`.
        target: the TVM target.
        rules: the rule set; TVM's own choice for the target where that is one of TVM's.
        trials: how many candidates it may measure.
        seed: of its search.
        build_timeout_s: of its builder; TVM's default is 30.
        batch: candidates in one iteration; TVM's default is 64.

    Returns:
        `{"seconds", "cpu_s", "trials": [[seconds since the start, latency in µs or null, trace], …], "reasons"}`: a
        trial's time is that of its batch's end, its trace is `save_json` text; CPU seconds are this process's and its
        children's; reasons say of each trial in one line why stock's builder or runner gave no latency, or null.
    """
    import tvm
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

    if target["kind"] == "cuda":
        import tvm.s_tir.tensor_intrin.cuda
    from littledragon.compiler.children import cpu_s
    from littledragon.compiler.rules import generator

    found: list[list[Any]] = []
    reasons: list[str | None] = []

    @derived_object
    class Watch(PyMeasureCallback):  # type: ignore[misc]
        def apply(self, scheduler: Any, task_id: int, candidates: Any, builds: Any, results: Any) -> None:
            at = time.perf_counter() - began
            for candidate, build, result in zip(candidates, builds, results, strict=True):
                seconds = [float(one) for one in result.run_secs] if result.run_secs else []
                latency = 1e6 * sum(seconds) / len(seconds) if seconds and max(seconds) < 1e9 else None
                found.append([at, latency, str(tvm.ir.save_json(candidate.sch.trace.as_json()))])
                said = build.error_msg or result.error_msg or "it took no time that can be told"
                reasons.append(None if latency is not None else last_words(str(said)))

    began, cpu = time.perf_counter(), cpu_s()
    with tempfile.TemporaryDirectory(prefix="dragon-stock-") as folder:
        ms.tune_tir(
            tvm.ir.load_json(module),
            tvm.target.Target(target),
            folder,
            max_trials_global=trials,
            num_trials_per_iter=min(batch, trials),
            builder=ms.builder.LocalBuilder(max_workers=len(os.sched_getaffinity(0)), timeout_sec=build_timeout_s),
            runner=ms.runner.LocalRunner(timeout_sec=30),
            measure_callbacks=[*ms.MeasureCallback.create("default"), Watch()],
            space=generator(rules, target),
            seed=seed,
        )
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_s": cpu_s() - cpu, "trials": found, "reasons": reasons}


def last_words(text: str) -> str:
    """The end of an error message, which says what it was, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_SAID else f"…{line[1 - MOST_SAID :]}"
