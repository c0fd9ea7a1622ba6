"""References of workloads: made once, whoever asks; kept while in use; a failure is found out once."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littledragon.compiler import children, targets
from littledragon.compiler.children import ChildError
from littledragon.validators import references as module
from littledragon.validators.device import Workload
from littledragon.validators.references import References

TARGET = targets.target("llvm")


class Calls:
    """Calls a function in a real child, and remembers which."""

    def __init__(self) -> None:
        self.child = children.Child()
        self.made: list[str] = []

    def __call__(self, function: str, **arguments: Any) -> Any:
        self.made.append(function.rpartition(":")[2])
        return self.child.call(function, deadline_s=60, **arguments)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "compiler" / "probe"))
    calls = Calls()
    yield calls
    calls.child.close()


def workload(calls: Calls, by: float) -> Workload:
    made = calls.child.call("littledragon.probe.modules:shifted", deadline_s=60, n=64, by=by)
    return Workload(made["module"], made["specs"])


def test_many_ask_and_one_is_made(calls: Calls) -> None:
    kept, asked = References(), workload(calls, 1.0)
    found: list[Any] = []

    def ask() -> None:
        with kept.of(asked, [0, 1], 0, TARGET, calls) as reference:
            found.append((reference.arguments[0], reference.outputs[1]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all(one == found[0] for one in found)
    assert calls.made == ["reference"] * 2


def test_cases_are_made_beside_each_other(calls: Calls) -> None:
    kept, asked, met = References(), workload(calls, 1.0), threading.Barrier(3, timeout=30)

    def call(function: str, **arguments: Any) -> Any:
        met.wait()
        return calls(function, **arguments)

    with kept.of(asked, [0, 1, 2], 0, TARGET, call) as reference:
        assert sorted(reference.outputs) == sorted(reference.arguments) == [0, 1, 2]
    assert kept._made[f"{asked.key}-0"].size == sum(Path(path).stat().st_size for path in reference.paths())


def test_a_reference_that_fails_is_found_out_once(calls: Calls) -> None:
    kept, broken = References(), Workload("{}", workload(calls, 1.0).specs)
    for _ in range(5):
        with pytest.raises(ChildError, match="raised"), kept.of(broken, [0], 0, TARGET, calls):
            pass
    assert calls.made == ["reference"]


def test_what_the_machine_refuses_is_tried_again(calls: Calls, tmp_path: Path) -> None:
    kept, asked = References(), workload(calls, 1.0)
    kept._folder, folder = tmp_path / "none" / "such", kept._folder
    (tmp_path / "none").write_text("a file")
    with pytest.raises(ChildError, match="Errno"), kept.of(asked, [0], 0, TARGET, calls):
        pass
    kept._folder = folder
    with kept.of(asked, [0], 0, TARGET, calls) as reference:
        assert list(reference.outputs) == [0]


def test_what_is_held_stays_and_the_rest_goes(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 0)
    kept = References()
    one, other = workload(calls, 1.0), workload(calls, 2.0)
    with kept.hold(one, 0):
        with kept.of(one, [0], 0, TARGET, calls) as reference:
            paths = [Path(path) for path in reference.paths()]
        with kept.of(other, [0], 0, TARGET, calls) as reference:
            gone = [Path(path) for path in reference.paths()]
            assert all(path.exists() for path in gone)
        assert all(path.exists() for path in paths)
        assert not any(path.exists() for path in gone)
        with kept.of(one, [0], 0, TARGET, calls):
            pass
    assert calls.made.count("reference") == 2
    assert not any(path.exists() for path in paths)
