"""Teach and check from a real store: both teachers, re-asks, refusals, and what the verifier says of the result."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from littledragon.pipelines import check, driver, teach
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Result, Unit
from littledragon.schemas import tsel
from littledragon.schemas.ids import ID_PATTERN
from littledragon.schemas.tables import BY_NAME
from littledragon.teacher_prompts import load as load_template
from littledragon.validators import verifier

GOLDEN = Path(__file__).parents[1] / "golden" / "labels"
TASK = json.loads((GOLDEN / "matmul.task.json").read_text(encoding="utf-8"))
FACTS = json.loads((GOLDEN / "matmul.facts.json").read_text(encoding="utf-8"))
GRAPH = tsel.decode(TASK["tsel"]).graph
OBSERVED = {"attempt": 1, "started_at": "2026-01-01T00:00:00Z", "wall_s": 0.1, "host": "h"}
IDS = {"construct": "s-0000000000000001", "refine": "s-0000000000000002"}


def tables() -> dict[str, list[dict[str, Any]]]:
    base = {"workload_id": "w-0", "environment_id": "e", "candidate_id": "c-1", "reason": None, "detail": None}
    chosen = [
        {
            **base,
            "selection_id": IDS["construct"],
            "mode": "construct",
            "state": "ok",
            "parent_id": None,
            "gain_band": None,
        },
        {
            **base,
            "selection_id": IDS["refine"],
            "mode": "refine",
            "state": "ok",
            "parent_id": "c-2",
            "gain_band": "1.5x to 2x",
        },
        {**base, "selection_id": "s-3", "mode": "refine", "state": "rejected", "parent_id": None, "gain_band": None},
    ]
    facts = [{"selection_id": IDS[mode], **row} for mode, rows in FACTS.items() for row in rows]
    trace = {"candidate_id": "c-1", "trace": TASK["trace"], "tsel": TASK["tsel"]}
    return {
        "selections": [{**row, "ratio": 1.7, "margin": 0.05} for row in chosen],
        "facts": facts,
        "traces": [{**trace, "postproc_rules": "llvm", "instructions": 36, "postproc_instructions": 18}],
        "environments": [{**{c.name: "x" for c in BY_NAME["environments"].columns}, "environment_id": "e"}],
    }


@pytest.fixture
def store(fill: Any, tmp_path: Path) -> Any:
    return fill(tmp_path / "work", tables())


def run(store: Any, stage: Any, config: Config) -> list[Result]:
    """Plan, load, work and commit, as the driver does."""
    units = stage.plan(store, config)
    results = []
    for unit, loaded in zip(units, stage.load(store, units, config), strict=True):
        payload = json.loads(json.dumps(loaded))
        results.append(stage.work(payload, config))
        store.commit(unit, results[-1], OBSERVED)
    store.plan(stage.NAME, units)
    return results


def test_the_facts_teacher_through_both_stages(store: Any) -> None:
    config = Config()
    results = run(store, teach, config)
    assert [r.state for r in results] == ["ok", "ok"]
    labels = store.rows("labels")
    assert {(row["teacher"], row["model"], row["asks"]) for row in labels} == {("facts", "templates", 1)}
    assert {row["prompt_version"] for row in labels} == {load_template("facts").version}
    assert all(ID_PATTERN.fullmatch(row["label_id"]) for row in labels)
    for mode, selection in IDS.items():
        text = next(row["graph"] for row in labels if row["selection_id"] == selection)
        assert text + "\n" == (GOLDEN / f"matmul.{mode}.xml").read_text(encoding="utf-8")
    assert [r.state for r in run(store, check, config)] == ["ok", "ok"]
    checks = store.rows("checks")
    assert {row["label_id"] for row in checks} == {row["label_id"] for row in labels}
    assert all(row["citations"] and row["computations"] and row["claims"] for row in checks)
    assert {row["verifier_version"] for row in checks} == {verifier.VERSION}


def test_a_label_that_lies_is_rejected_by_check(store: Any) -> None:
    run(store, teach, Config())
    unit = check.plan(store, Config())[0]
    (payload,) = check.load(store, [unit], Config())
    payload["graph"] = payload["graph"].replace('<effect id="p1">', '<effect id="p1">It is 2x faster. ')
    result = check.work(payload, Config())
    assert (result.state, result.reason) == ("rejected", "speedup_claimed")
    row = result.rows["checks"][0]
    assert (row["state"], row["reason"], row["label_id"]) == ("rejected", "speedup_claimed", payload["label_id"])
    assert set(row) == {column.name for column in BY_NAME["checks"].columns}


def test_units_follow_their_inputs(store: Any, fill: Any) -> None:
    before = {unit.id for unit in teach.plan(store, Config())}
    assert len(before) == 2
    assert before == {unit.id for unit in teach.plan(store, Config(teacher_url="http://elsewhere", teacher_rpm=1))}
    other = Config(teacher="openai", teacher_model="m")
    assert not before & {unit.id for unit in teach.plan(store, other)}
    changed = tables()
    changed["facts"][0]["text"] += "!"
    after = {unit.id for unit in teach.plan(fill(store.path, changed), Config())}
    assert len(before & after) == 1


def test_a_check_of_an_earlier_text_does_not_count(store: Any, fill: Any) -> None:
    run(store, teach, Config())
    run(store, check, Config())
    driver.require_current(store, check, Config())
    label = store.rows("labels")[0]
    again = Unit(teach.NAME, teach.VERSION, {"asks": 2}, {"selection_id": label["selection_id"]})
    rewritten = {**label, "graph": label["graph"].replace("<summary>", "<summary>Now: ", 1)}
    store.commit(again, Result({"labels": [rewritten]}), OBSERVED)
    store.plan(teach.NAME, [again])
    with pytest.raises(UserError, match="run `dragon check` first"):
        driver.require_current(store, check, Config())


def reply(**changes: Any) -> str:
    good = {
        "evidence": [{"id": "e1", "cite": "in.block.nt_matmul.loop.k.extent"}],
        "analyses": [
            {
                "id": "a1",
                "text": "Loop k has [in.block.nt_matmul.loop.k.extent=128] iterations: 128 / 32 = 4.",
                "supported_by": ["e1"],
                "motivates": ["t3"],
            }
        ],
        "summaries": {edit.id: "This step prepares the next ones." for edit in GRAPH.edits},
        "effects": [{"id": "p1", "text": "Less loop overhead should remain.", "predicted_by": ["t3"]}],
    }
    return json.dumps({**good, **changes})


def openai(url: str, **settings: Any) -> Config:
    named = {"teacher": "openai", "teacher_model": "some-model", "teacher_url": url, "teacher_rpm": 60_000}
    return Config(**{**named, "teacher_deadline_s": 10.0, **settings})


def label(store: Any, config: Config) -> Result:
    unit = next(u for u in teach.plan(store, config) if u.inputs["selection_id"] == IDS["construct"])
    result: Result = teach.work(teach.load(store, [unit], config)[0], config)
    for row in result.rows.get("labels", []):
        assert set(row) == {column.name for column in BY_NAME["labels"].columns}
    return result


def test_a_model_is_asked_again_with_the_objections(store: Any, endpoint: Any) -> None:
    lie = [{"id": "p1", "text": "The kernel is 2x faster.", "predicted_by": ["t3"]}]
    answers = ["Sure! Here is the graph.", reply(effects=lie), reply()]

    def script(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            endpoint.send(handler, 429, b"{}", retry_after="0")
        else:
            endpoint.good(handler, answers[max(number - 1, 0)])

    with endpoint.serve(script) as (url, asked):
        result = label(store, openai(url))
    row = result.rows["labels"][0]
    assert (result.state, row["state"], row["teacher"], row["model"]) == ("ok", "ok", "openai", "some-model")
    assert (row["asks"], row["tokens_in"], row["tokens_out"]) == (3, 33, 21)
    assert row["prompt_version"] == load_template("openai").version
    assert verifier.verify(row["graph"], TASK["tsel"], TASK["trace"], FACTS["construct"], "construct").state == "ok"
    assert [len(a["messages"]) for a in asked] == [2, 4, 4, 4]
    assert "not one JSON object" in asked[2]["messages"][3]["content"]
    assert "speedup_claimed" in asked[3]["messages"][3]["content"]
    system, question = (m["content"] for m in asked[0]["messages"][:2])
    assert "One JSON object" in system or "one JSON object" in system
    assert "[in.block.nt_matmul.loop.k.extent=128] loop k of block NT_matmul has extent 128" in question
    assert '<trace_sequence id="t1"' in question
    assert "_us" not in question


def test_a_model_that_never_learns_is_rejected(store: Any, endpoint: Any) -> None:
    with endpoint.serve(lambda handler, _: endpoint.good(handler, "no")) as (url, asked):
        result = label(store, openai(url, teacher_asks=2))
    row = result.rows["labels"][0]
    assert (result.state, result.reason) == ("rejected", "invalid_reply")
    assert (row["state"], row["reason"], row["graph"], row["asks"]) == ("rejected", "invalid_reply", None, 2)
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("status", "text", "state", "reason"),
    [
        (400, "", "rejected", "declined"),
        (200, " " * 300_000, "rejected", "too_long"),
        (401, "", "failed", "unauthorized"),
        (402, "", "failed", "unauthorized"),
    ],
)
def test_refusals_are_final_and_faults_are_not(
    store: Any, endpoint: Any, status: int, text: str, state: str, reason: str
) -> None:
    with endpoint.serve(lambda handler, _: endpoint.send(handler, status, endpoint.completion(text))) as (url, asked):
        result = label(store, openai(url))
    assert (result.state, result.reason) == (state, reason)
    assert bool(result.rows) == (state == "rejected")
    assert len(asked) == (2 if status == 400 else 1)  # once more, without `response_format`


def test_an_endpoint_that_is_down_may_pass(store: Any, endpoint: Any) -> None:
    with endpoint.serve(lambda handler, _: endpoint.send(handler, 503, b"")) as (url, _):
        result = label(store, openai(url, teacher_deadline_s=1.0))
    assert (result.state, result.reason, result.rows) == ("failed", "server", {})


def test_an_endpoint_without_a_model_is_a_fault_of_the_user(store: Any) -> None:
    with pytest.raises(UserError, match="teacher_model"):
        teach.plan(store, Config(teacher="openai"))


def test_whatever_changes_in_facts_changes_their_digest_and_their_order_does_not():
    import duckdb

    def digest(*facts: tuple[int, str, str, str]) -> str:
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE facts (selection_id TEXT, position INT, path TEXT, value TEXT, text TEXT)")
            connection.executemany("INSERT INTO facts VALUES ('s', ?, ?, ?, ?)", facts)
            ((_, found),) = connection.sql(teach.FACTS_DIGESTS).fetchall()
        return str(found)

    one, two = (0, "in.a", "1", "a is 1"), (1, "in.b", "1", "a is 1")
    assert digest(one, two) == digest(two, one)
    others = [digest(one), digest(two)]
    others += [digest(one, (2, *two[1:])), digest((1, *one[1:]), (0, *two[1:])), digest(one, two, (2, *two[1:]))]
    others += [digest(one, (1, "in.b", "2", "a is 1")), digest(one, (1, "in.b", "1", "a is 2"))]
    others += [digest(one, (1, "in.b1", "", "a is 1")), digest(one, (1, "in.c", "1", "a is 1"))]
    assert len({digest(one, two), *others}) == 1 + len(others)
