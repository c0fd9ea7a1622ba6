"""The device service: verdicts of texts, many at once, on the simulated device and on this machine's CPU."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from littledragon.compiler import children, targets
from littledragon.compiler._child import MAX_FRAME
from littledragon.compiler.children import ChildError
from littledragon.schemas import tsel
from littledragon.schemas.graph import Analysis
from littledragon.validators import device as devices
from littledragon.validators import service as services
from littledragon.validators.device import Deadlines, Made
from littledragon.validators.service import Service, Task, Verdict, _fault_of, own_limit

LLVM = targets.target("llvm")
GOLDEN = Path(__file__).parents[1] / "golden" / "release"
FAST, SLOW = ((GOLDEN / f"payload_{name}.txt").read_text(encoding="utf-8") for name in ("fast", "slow"))
N = 1024
MODULES: dict[str, dict[str, Any]] = {
    "shifted": {"n": N, "by": 1.0},
    "endless": {"n": 1 << 22, "by": 1.0},
    "long": {"n": 1 << 20, "by": 1.0},
    "brittle": {"n": N},
    "wild": {"n": 8},
}
DEADLINES = Deadlines(build_s=5, run_s=5)


def task_of(id: str, made: dict[str, Any], default_us: float = 100.0) -> Task:
    return Task(id, made["module"], made["specs"], LLVM, default_us, default_us / 8, 0.01, 0.05)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Task]]:
    """A product of matrices, and tiny programs of the probe."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "compiler" / "probe"))
    product = {
        "module": (GOLDEN / "module.json").read_text(encoding="utf-8"),
        "specs": json.loads((GOLDEN / "inputs.json").read_text(encoding="utf-8")),
    }
    made, maker = {"product": product}, children.Child()
    for name, arguments in MODULES.items():
        function = "shifted" if name in ("endless", "long") else name
        made[name] = maker.call(f"littledragon.probe.modules:{function}", deadline_s=90, **arguments)
    maker.close()
    yield [task_of(name, one) for name, one in made.items()] + [Task("none", "{}", [], LLVM, 2.0, 1.0, 0.0, 0.05)]
    children.close_all()
    patch.undo()


def graph(*edits: str, postproc: bool = True) -> str:
    """A text in the line notation; each edit's instructions, with line breaks between."""
    inner = "".join(f'<trace_sequence id="t{i}">\n{edit}\n</trace_sequence>\n' for i, edit in enumerate(edits))
    rules = '<postproc rules="llvm" version="1"/>\n' if postproc else ""
    return f'<graph version="tsel/1" notation="line" tvm="{tsel.decode(FAST).graph.tvm}">\n{inner}{rules}</graph>\n'


Y = "b0 = block y\nl1 = loops b0\n"


def tiled(inner: int) -> str:
    return graph(f"{Y}v2-3 = tile l1 {N} [{N // inner}]\nl4-5 = split\nvectorize l5")


def deep(count: int) -> str:
    """Splits by one, each inside the last: every further one takes TVM longer."""
    loops = [1, *range(3, 2 * count + 2, 2)]
    lines = (f"l{2 * i + 2}-{2 * i + 3} = split l{loop} 1 null" for i, loop in enumerate(loops[:count]))
    return graph(Y + "\n".join(lines))


SLOW_TO_APPLY = deep(2000)
SLOW_TO_BUILD = graph(f"{Y}unroll l1")
CRASHING = graph("b0 = block far\nunsafe_set_dtype b0 0 int8")
WRONG = graph("b0 = block y\nb1 = cache_write b0 0 global\nunsafe_set_dtype b0 0 int8")


def explained(text: str, words: str) -> str:
    bare = tsel.decode(text).graph
    return tsel.render(replace(bare, analyses=(Analysis("a1", words),))).text


# -- simulated --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tasks: list[Task]) -> Iterator[Service]:
    with Service(tasks, "simulated", deadlines=DEADLINES) as service:
        yield service


@pytest.mark.parametrize(
    ("text", "gate", "f_div", "p"),
    [
        ("", "parsed", 0, 0),
        ("\ud800", "parsed", 0, 0),
        ("<graph/>", "parsed", 0, 0),
        (FAST.replace("tile l2 128", "tile l2 127"), "wellformed", 2 / 3, 0),
        (FAST.replace("tile l3 128 [2,1,1]", "tile l3 64 [1,1,1]"), "applicable", 1, 6 / 17),
        (FAST.replace('<postproc rules="llvm" version="1"/>\n', ""), "postprocessed", 1, 1),
        (FAST, "ok", 1, 1),
    ],
)
def test_how_far_a_text_comes(simulated: Service, text: str, gate: str, f_div: float, p: float) -> None:
    verdict = simulated.evaluate("product", text)
    assert (verdict.gate, verdict.fault) == (gate, None)
    assert verdict.f_div == pytest.approx(f_div)
    assert verdict.p == pytest.approx(p)
    assert (verdict.reason is None) == (gate == "ok")
    assert (verdict.latency_us is not None) == (gate == "ok")
    assert len(verdict.repeats_us) == (5 if gate == "ok" else 0)
    assert json.loads(json.dumps(verdict.as_dict(), allow_nan=False))["p"] == verdict.p


def test_the_default_schedule_has_a_verdict_too(simulated: Service) -> None:
    found = simulated.default("product")
    assert (found.gate, found.fault) == ("ok", None)
    assert found.latency_us is not None
    assert found.module_hash != simulated.evaluate("product", FAST).module_hash
    assert simulated.default("none").fault is not None


def test_what_is_measured_again_is_built_and_measured_again(tasks: list[Task]) -> None:
    """A text by `again`, and the default schedule at each call: neither remembers, and neither is remembered."""
    with Service(tasks, "simulated") as service:
        first = service.evaluate("product", FAST)
        for count in (2, 3):
            again = service.again("product", FAST)
            assert (again.gate, again.latency_us, again.module_hash) == ("ok", first.latency_us, first.module_hash)
            assert "wait" not in again.seconds
            assert (service.counts()["built"], service.counts()["measured"]) == (count, count)
        for count in (4, 5):
            assert service.default("product").gate == "ok"
            assert service.counts()["measured"] == count
        assert service.evaluate("product", FAST) == first
        assert service.evaluate("product", explained(FAST, "The same module.")).latency_us == first.latency_us
        assert service.counts()["measured"] == 5
        assert service.again("product", "no graph").gate == "parsed"
        is_fault(service.again("none", tiled(32)), "raised")
        assert service.counts() == {"evaluated": 7, "made": 7, "built": 5, "measured": 5, "faults": 1}


def test_a_text_and_a_module_are_measured_once(tasks: list[Task]) -> None:
    """Also where all of them come at the same time: the same text, and others that spell the same module."""
    texts = [FAST] * 6 + [explained(FAST, f"Reason {number}.") for number in range(6)] + [SLOW] * 4
    with Service(tasks, "simulated") as service, ThreadPoolExecutor(len(texts)) as pool:
        verdicts = list(pool.map(lambda text: service.evaluate("product", text), texts))
        again = [service.evaluate("product", text) for text in texts]
        counts = service.counts()
    assert len({(v.module_hash, v.latency_us, v.error, v.gate) for v in verdicts}) == 2
    assert again == verdicts
    assert counts == {"evaluated": 32, "made": 8, "built": 2, "measured": 2, "faults": 0}


def test_what_is_kept_has_bounds_and_verdicts_stay_the_same(tasks: list[Task]) -> None:
    with Service(tasks, "simulated", held=1, kept=1) as service:
        asked = [("product", FAST), ("shifted", tiled(32)), ("product", SLOW)] * 2
        first, second = (
            [(v.gate, v.latency_us) for v in (service.evaluate(*one) for one in asked[i : i + 3])] for i in (0, 3)
        )
        assert first == second
        assert service.counts()["built"] == 6
        assert (len(service._held), len(service._texts), len(service._modules)) == (1, 1, 1)
        assert len(list((service._folder / "claims").glob("*/*"))) == 1


def test_one_text_of_two_tasks_is_two(simulated: Service) -> None:
    text = graph("b0 = block y")
    of = [simulated.evaluate(name, text) for name in ("shifted", "long")]
    assert len({verdict.module_hash for verdict in of}) == 2


@pytest.mark.parametrize(
    ("change", "device", "words"),
    [
        ({}, "imaginary", "choose real or simulated"),
        ({"task_id": "shifted"}, "simulated", "two tasks have the id shifted"),
        ({"target": {"kind": "llvm", "num-cores": 63}}, "real", "num-cores"),
    ],
)
def test_what_no_service_can_take(tasks: list[Task], change: dict[str, Any], device: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Service([*tasks, replace(tasks[0], **{"task_id": "other", **change})], device)


def test_a_task_that_is_none(simulated: Service) -> None:
    with pytest.raises(KeyError):
        simulated.evaluate("nobody's", FAST)


# -- faults are no gates ----------------------------------------------------------------------------


def is_fault(verdict: Verdict, words: str) -> None:
    assert verdict.gate is None
    assert verdict.fault is not None
    assert words in verdict.fault
    assert "\n" not in verdict.fault


def test_a_module_that_is_none_is_a_fault(simulated: Service) -> None:
    is_fault(simulated.evaluate("none", tiled(32)), "raised")
    assert simulated.evaluate("none", "no graph").gate == "parsed"


def test_a_closed_service_and_a_lost_folder_are_faults(tasks: list[Task]) -> None:
    service = Service(tasks, "simulated")
    service._own.close()
    is_fault(service.evaluate("product", FAST), "No such file")
    service.close()
    is_fault(service.evaluate("product", FAST), "closed")
    assert service.counts()["faults"] == 2


def test_a_reference_that_cannot_be_made_is_a_fault(real: Service) -> None:
    is_fault(real.evaluate("wild", graph("b0 = block y")), "no reference")
    assert real.evaluate("wild", graph("b0 = block z")).gate == "applicable"


def test_a_device_that_does_not_run_the_default_schedule_is_a_fault(tasks: list[Task]) -> None:
    with Service(tasks, "real", deadlines=Deadlines(run_s=0.0), repeat_ms=1e-4) as service:  # microseconds in all
        is_fault(service.evaluate("shifted", tiled(32)), "the default schedule does not run either")
        assert service.counts()["built"] == 1


def test_who_expects_a_module_of_a_text_that_ended_without_a_word_is_told(tasks: list[Task]) -> None:
    """A claim says who builds a module. Nobody waits for a claimant that is gone, or goes without a result."""
    with Service(tasks, "simulated") as service, ThreadPoolExecutor(1) as pool:
        module_hash = str(service.evaluate("product", FAST).module_hash)
        claim = service._claims("product") / module_hash
        service._modules.clear()
        with service._under_way() as folder:
            claim.unlink()
            claim.symlink_to(folder)
            asked = pool.submit(service.evaluate, "product", explained(FAST, "One."))
            waited_for(lambda: bool(service._owed[str(folder)]))
        is_fault(asked.result(timeout=60), "it was given up")
        claim.symlink_to(folder)  # of one that ended before anybody asked
        again = pool.submit(service.evaluate, "product", explained(FAST, "Two.")).result(timeout=60)
        assert (again.gate, again.module_hash) == ("ok", module_hash)
        assert service._owed == {}


def test_what_is_not_known_of_a_text_is_no_verdict() -> None:
    assert _fault_of(Made(None)) == "what its admission said could not be read"
    assert _fault_of(Made({"failed": None})) is None


def test_a_child_that_reached_its_own_limit_says_so() -> None:
    """What grew beyond the child's memory is a verdict; whatever else a child raises is not."""
    assert own_limit(ChildError("raised", "MemoryError: "))
    assert own_limit(ChildError("raised", "InternalError: std::bad_alloc"))
    assert not own_limit(ChildError("raised", "ValueError: no module"))
    assert not own_limit(ChildError("crashed", "MemoryError"))
    assert not own_limit(MemoryError("MemoryError"))


def test_a_machine_that_cannot_take_a_question_is_a_fault(tasks: list[Task]) -> None:
    """Whatever is raised on the way: a frame that is too large, or no thread, no memory."""
    huge = Task("huge", "x" * MAX_FRAME, [], LLVM, 2.0, 1.0, 0.0, 0.05)
    with Service([huge], "simulated") as service:
        is_fault(service.evaluate("huge", tiled(32)), "exceed the largest frame")


def test_a_child_that_dies_on_a_full_disk_is_a_fault(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM ends its process where it cannot write, and what it says of that is written to the same disk."""
    monkeypatch.setattr(services, "ROOM", 1 << 62)
    with Service(tasks, "simulated") as service, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.evaluate, "shifted", SLOW_TO_APPLY)
        waited_for(lambda: any(read(path) for path in service._folder.glob("*/applied")))
        (path,) = service._folder.glob("*/applied")
        (applying,) = (one for one in psutil.Process().children(recursive=True) if has_open(one.pid, path))
        os.kill(applying.pid, signal.SIGABRT)  # TVM's handler of SIGSEGV allocates: it can hang within malloc
        is_fault(asked.result(), "no space left on device: crashed")
        assert service.evaluate("shifted", tiled(32)).gate == "ok"


# -- real -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tasks: list[Task]) -> Iterator[Service]:
    with Service(tasks, "real", deadlines=DEADLINES, repeat_ms=1.0) as service:
        yield service


def test_many_at_once_with_some_that_do_their_worst(real: Service) -> None:
    """What crashes, hangs, or is wrong has its gate and its credit, and what is right beside it passes."""
    asked = {
        ("shifted", tiled(32)): "ok",
        ("shifted", tiled(64)): "ok",
        ("shifted", explained(tiled(64), "It is wide.")): "ok",
        ("shifted", WRONG): "correct",
        ("shifted", SLOW_TO_APPLY): "applicable",
        ("shifted", "no graph"): "parsed",
        ("endless", SLOW_TO_BUILD): "built",
        ("brittle", CRASHING): "ran",
        ("brittle", graph("b0 = block far")): "ok",
    }
    before = real.counts()
    many = [*asked] * 3
    with ThreadPoolExecutor(len(many)) as pool:
        verdicts = dict(zip(many, pool.map(lambda one: real.evaluate(*one), many), strict=True))
    assert {one: (verdict.gate, verdict.fault) for one, verdict in verdicts.items()} == {
        one: (gate, None) for one, gate in asked.items()
    }
    for verdict in verdicts.values():
        if verdict.gate == "ok":
            assert verdict.error is not None
            assert verdict.error <= 1
            assert verdict.latency_us == sorted(verdict.repeats_us)[2] > 0
        assert verdict.p == 1 or verdict.gate in ("applicable", "parsed")
    late, crashed, wrong = (
        verdicts[one] for one in (("shifted", SLOW_TO_APPLY), ("brittle", CRASHING), ("shifted", WRONG))
    )
    assert 0 < late.applied < late.emitted == 2002
    assert late.module_hash is None
    assert "deadline" in str(late.reason)
    assert "SIGSEGV" in str(crashed.reason)
    assert wrong.error is not None
    assert wrong.error > 1
    built = {(task, verdicts[task, text].module_hash) for task, text in asked if verdicts[task, text].module_hash}
    after = real.counts()
    assert after["built"] - before["built"] <= len(built)
    assert after["made"] - before["made"] <= len([text for _, text in asked if text != "no graph"])
    assert real.evaluate("shifted", tiled(32)) == verdicts["shifted", tiled(32)]


def test_who_shares_a_module_has_the_time_of_its_build_and_its_measurement(real: Service) -> None:
    """Its time to kernel is then as if it had come first, and not that of looking up what another has done."""
    first = real.evaluate("shifted", tiled(16))
    other = real.evaluate("shifted", explained(tiled(16), "It is narrow."))
    assert other.module_hash == first.module_hash
    for step in ("build", "check"):
        assert other.seconds[step] == first.seconds[step] > 0
    assert other.seconds["make"] > other.seconds["build"]
    assert "wait" not in other.seconds


def test_what_is_a_tasks_own_is_made_before_a_text_comes(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text's time then holds neither the start of the children nor the reference."""
    asked: list[str] = []
    on_slot = devices.Device.on_slot

    def spy(device: devices.Device, function: str, *arguments: Any, **named: Any) -> Any:
        asked.append(function.rpartition(":")[2])
        return on_slot(device, function, *arguments, **named)

    monkeypatch.setattr(devices.Device, "on_slot", spy)
    with Service(tasks, "real", deadlines=DEADLINES, repeat_ms=1.0, seed=7) as service:
        service.get_ready("shifted")
        assert sorted(asked) == ["make", "reference"]  # of the default schedule, which also starts what measures
        service.get_ready("shifted")
        service.get_ready("wild")  # it has no reference: its texts will say so
        assert [name for name in asked[2:] if name != "reference"] == []
        asked.clear()
        assert service.evaluate("shifted", tiled(8)).gate == "ok"
        assert asked == ["make"]
        assert service.counts()["made"] == 1
        with pytest.raises(KeyError):
            service.get_ready("nobody's")


def test_a_child_that_dies_while_it_applies_a_text_has_its_credit(tasks: list[Task]) -> None:
    with Service(tasks, "real", deadlines=Deadlines(build_s=60)) as service, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.evaluate, "shifted", SLOW_TO_APPLY)
        waited_for(lambda: any(read(path) > 100 for path in service._folder.glob("*/applied")))
        (path,) = service._folder.glob("*/applied")
        (applying,) = (one for one in psutil.Process().children(recursive=True) if has_open(one.pid, path))
        os.kill(applying.pid, signal.SIGABRT)
        verdict = asked.result()
        assert (verdict.gate, verdict.fault, verdict.f_div) == ("applicable", None, 0.0)
        assert "SIGABRT" in str(verdict.reason)
        assert 100 < verdict.applied < verdict.emitted == 2002
        assert service.evaluate("shifted", tiled(32)).gate == "ok"


def test_a_hopeless_kernel_is_right_and_hardly_timed(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "HOPELESS_S", 1e-4)
    text = graph(f"{Y}v2-3 = tile l1 {1 << 20} [{1 << 14}]\nl4-5 = split\nparallel l5")
    long = next(task for task in tasks if task.task_id == "long")
    with Service([replace(long, default_us=1.0)], "real") as service:
        verdict = service.evaluate("long", text)
    assert (verdict.gate, len(verdict.repeats_us)) == ("ok", 1)
    assert "hopeless" in str(verdict.reason)
    assert verdict.latency_us is not None
    assert verdict.latency_us > 100


def test_an_interrupt_is_a_fault_and_forgotten(simulated: Service) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(simulated.evaluate, "shifted", SLOW_TO_APPLY)
        waited_for(lambda: any(read(path) for path in simulated._folder.glob("*/applied")))
        children.close_all()
        is_fault(asked.result(), "interrupted")
    assert simulated.evaluate("shifted", tiled(32)).gate == "ok"


def waited_for(what: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end
        threading.Event().wait(0.01)


def read(path: Path) -> int:
    try:
        return int.from_bytes(path.read_bytes(), "little")
    except OSError:
        return 0


def has_open(pid: int, path: Path) -> bool:
    try:
        return str(path) in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except OSError:
        return False
