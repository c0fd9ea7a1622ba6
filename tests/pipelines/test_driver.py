"""The driver in one process: waves, failures, retries, and what a stage may do wrong. Kills are in tests/chaos."""

import dataclasses
import sys
import threading
import time
import types

import pytest
from distributed import Client, LocalCluster

from littledragon.pipelines import driver, workloads
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import Dask, Serial, Threads
from littledragon.pipelines.lease import acquire
from littledragon.pipelines.stage import Result, Unit
from littledragon.pipelines.store import Store

NAME = "search"


def row(name):
    columns = ("target", "device", "processor", "driver", "tvm", "tvm_ffi", "codec", "settings")
    return {"environment_id": name, **dict.fromkeys(columns, "x")}


@pytest.fixture
def toy(monkeypatch):
    """A stage of five units whose doings a test can change: `toy.does[number]`."""
    stage = types.ModuleType("toy_stage")
    stage.NAME, stage.VERSION, stage.TABLES = NAME, 1, ("environments",)
    stage.does, stage.worked, stage.loaded = {}, [], []
    stage.params = lambda config: {}
    stage.plan = lambda store, config: [Unit(NAME, 1, {}, {"number": number}) for number in range(5)]

    def load(store, units, config):
        stage.loaded.append([unit.inputs["number"] for unit in units])
        return [dict(unit.inputs) for unit in units]

    def work(payload, config):
        number = payload["number"]
        stage.worked.append(number)
        return stage.does.get(number, lambda: Result({"environments": [row(f"e{number}")]}))()

    stage.load, stage.work = load, work
    monkeypatch.setitem(sys.modules, stage.__name__, stage)
    return stage


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "work", create=True)


def run(store, stage, **options):
    with acquire(store.path, stage.NAME) as lease:
        driver.run_stage(store, stage, Config(), Serial(), lease, **options)


def states(store):
    return {row["inputs"]: row["state"] for row in store.rows("outcomes")}


def throw(error):
    raise error


def test_running_again_does_nothing_again(store, toy, capsys):
    run(store, toy)
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    assert [r["environment_id"] for r in store.rows("environments")] == ["e0", "e1", "e2", "e3", "e4"]
    assert "search: 5/5 · 5 ok" in capsys.readouterr().err
    assert (store.path / "catalog.duckdb").exists()


def test_payloads_are_loaded_just_in_time_a_slice_at_once(store, toy, monkeypatch):
    monkeypatch.setattr(driver, "SLICE", 2)
    toy.does[2] = lambda: throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(store, toy)
    assert toy.loaded == [[0, 1], [2, 3]]
    assert len(store.complete(NAME)) == 2
    del toy.does[2]
    run(store, toy)
    assert toy.worked == [0, 1, 2, 2, 3, 4]


def grows(toy):
    """Number 2 is planned once number 0 has ended; number 1 does not end before 2 has."""
    second = threading.Event()

    def plan(store, config):
        known = [0, 1] + [2] * (len(store.rows("environments", "environment_id = 'e0'")))
        return [Unit(NAME, 1, {}, {"number": number}) for number in known]

    def wait():
        assert second.wait(30), "the plan was not asked for again while this was under way"
        return Result({"environments": [row("e1")]})

    def end():
        second.set()
        return Result({"environments": [row("e2")]})

    toy.plan, toy.does[1], toy.does[2] = plan, wait, end


@pytest.fixture(params=["threads", "dask"])
def two_at_once(request):
    if request.param == "threads":
        yield Threads(2)
        return
    cluster = LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None)
    with cluster, Client(cluster) as client:
        yield Dask(client)


def test_what_a_growing_plan_names_later_does_not_wait_for_what_it_named_before(store, toy, two_at_once):
    grows(toy)
    toy.GROWS = True
    with acquire(store.path, toy.NAME) as lease:
        driver.run_stage(store, toy, Config(), two_at_once, lease)
    assert [outcome.state for outcome in store.outcomes(NAME).values()] == ["ok"] * 3
    assert [outcome.attempt for outcome in store.outcomes(NAME).values()] == [1] * 3


def test_a_growing_plan_that_takes_long_is_asked_for_between_waves_alone(store, toy, monkeypatch):
    grows(toy)
    toy.GROWS = True
    del toy.does[1]  # nothing waits
    planned = []
    plan = toy.plan

    def slowly(store, config):
        time.sleep(1.1 * driver.PLANNING_S)
        planned.append(sorted(toy.worked))
        return plan(store, config)

    monkeypatch.setattr(toy, "plan", slowly)
    run(store, toy)
    assert planned == [[], [0, 1], [0, 1, 2]]


def test_what_fails_is_kept_and_done_again_only_when_asked(store, toy):
    toy.does[1] = lambda: throw(ValueError("not today"))
    toy.does[2] = lambda: Result(state="rejected", reason="no_space")
    run(store, toy)
    (failed,) = store.rows("outcomes", "state = 'failed'")
    assert (failed["reason"], failed["attempt"]) == ("raised", 1)
    assert "not today" in failed["detail"]
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    run(store, toy, retry="failed")
    assert toy.worked[5:] == [1], "rejected work is never redone, and a retry is one retry"
    run(store, toy, retry="no_space")
    assert toy.worked[6:] == [2], "what was rejected for this reason is, where that is asked for"
    del toy.worked[6:], toy.does[1]
    run(store, toy, retry="failed")
    run(store, toy, retry="failed")
    assert toy.worked[5:] == [1, 1]
    (mended,) = store.rows("outcomes", "unit_id = $id", id=failed["unit_id"])
    assert (mended["state"], mended["attempt"]) == ("ok", 3)
    assert len(store.rows("environments")) == 4


@pytest.mark.parametrize(
    "result",
    [
        Result({"environments": [{"environment_id": "short"}]}),
        Result({"candidates": [row("wrong table")]}),
        Result({"nothing": []}),
        Result(state="fine"),
        None,
        {"rows": {}},
    ],
)
def test_a_stage_that_gives_wrong_rows_fails_that_unit_alone(store, toy, result):
    toy.does[3] = lambda: result
    run(store, toy)
    assert sorted(states(store).values()) == ["failed", "ok", "ok", "ok", "ok"]


def test_a_payload_that_cannot_be_loaded_fails_that_unit_alone(store, toy):
    load = toy.load
    lost = {0, 4}
    toy.load = lambda s, us, c: throw(IndexError()) if lost & {u.inputs["number"] for u in us} else load(s, us, c)
    run(store, toy)
    assert states(store) == {f'{{"number":{n}}}': "failed" if n in (0, 4) else "ok" for n in range(5)}
    toy.load = lambda s, units, c: throw(UserError("damaged"))
    with pytest.raises(UserError, match="damaged"):
        run(store, toy, retry="failed")


def test_a_plan_that_grows_is_asked_until_nothing_is_left(store, toy):
    def plan(store, config):
        return [Unit(NAME, 1, {}, {"number": number}) for number in range(min(len(store.complete(NAME)) + 2, 5))]

    toy.plan = plan
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    assert len(store.manifest(NAME)) == 5


def test_a_smaller_plan_hides_rows_and_keeps_them(store, toy):
    run(store, toy)
    whole = toy.plan
    toy.plan = lambda store, config: whole(store, config)[1:3]
    run(store, toy)
    assert [r["environment_id"] for r in store.rows("environments")] == ["e1", "e2"]
    toy.plan = whole
    run(store, toy)
    assert len(store.rows("environments")) == 5
    assert toy.worked == [0, 1, 2, 3, 4]


def test_a_unit_named_twice_is_done_once(store, toy):
    whole = toy.plan
    toy.plan = lambda store, config: whole(store, config) * 2
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    assert len(store.manifest(NAME)) == 5


def test_finish_comes_after_all_units_every_time(store, toy):
    seen = []
    toy.finish = lambda store, config: seen.append(len(store.rows("environments")))
    run(store, toy)
    run(store, toy)
    assert seen == [5, 5]


def test_a_lost_lease_stops_the_driver_before_it_commits(store, toy):
    def steal():
        path = store.path / NAME / "lease.json"
        path.write_text(path.read_text().replace('"token": "', '"token": "not '))
        return Result()

    toy.does[2] = steal
    with pytest.raises(UserError, match="lost its lease"):
        run(store, toy)
    assert len(store.complete(NAME)) == 2


def test_many_units_are_compacted_while_running(store, toy, monkeypatch):
    monkeypatch.setattr(driver, "SMALL_FILES", 2)
    run(store, toy)
    assert len(store.files(NAME)) < 5
    assert len(store.rows("environments")) == 5


def test_units_are_told_apart_by_their_ids_alone(store, toy, monkeypatch):
    """Comparing each unit with each other costs hours where there are many."""
    monkeypatch.setattr(Unit, "__eq__", lambda one, other: throw(AssertionError("units were compared")))
    run(store, toy)
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]


def test_a_plan_that_shows_old_rows_is_asked_again(store, toy):
    """What grows from rows of an earlier run is planned in the same run that names them again."""

    def plan(store, config):
        seen = len(store.rows("environments"))
        return [Unit(NAME, 1, {}, {"number": number}) for number in range(min(seen + 1, 5))]

    toy.plan = plan
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    store.plan(NAME, [])
    run(store, toy)
    assert toy.worked == [0, 1, 2, 3, 4]
    assert len(store.rows("environments")) == 5


def test_a_stage_refuses_what_was_run_with_other_settings(store):
    small = Config(families=("gemm",), limit=1, device="simulated")
    store.plan("workloads", workloads.plan(store, small))
    for other in (dataclasses.replace(small, families=("moe",)), dataclasses.replace(small, target="cuda")):
        with pytest.raises(UserError, match="stage workloads was run with other settings") as caught:
            driver.run(store, ["search"], other, Serial())
        assert "\n" not in str(caught.value)
        assert store.manifest("search") is None
    driver.run(store, ["search"], small, Serial())
    assert store.manifest("search") == []


def test_a_stage_needs_those_before_it(store):
    with pytest.raises(UserError, match="stage verify needs workloads first: run `dragon workloads`"):
        driver.run(store, ["verify"], Config(), Serial())


def test_a_missing_setting_is_told_before_any_work(store):
    with pytest.raises(UserError, match="teacher_model: name the model"):
        driver.run(store, ["workloads", "teach"], Config(teacher="openai"), Serial())
    assert store.manifest("workloads") is None


def test_invented_measurements_do_not_take_the_place_of_real_ones(store, toy, monkeypatch):
    toy.does[0] = lambda: Result({"environments": [row("e") | {"device": "real"}]})
    run(store, toy)
    with pytest.raises(UserError, match="its measurements are real"):
        driver.run(store, ["workloads"], Config(device="simulated"), Serial())
    assert store.manifest("workloads") is None
