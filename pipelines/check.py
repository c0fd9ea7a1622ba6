"""Stage check: the static verifier's judgement of each label, from the tables alone."""

from collections.abc import Sequence
from typing import Any, Final

from littledragon.pipelines.config import Config
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.pipelines.teach import FACTS_DIGESTS
from littledragon.validators import verifier

NAME: Final = "check"
VERSION: Final = 2
TABLES: Final = ("checks",)
SLICE: Final = 256
"""Small payloads, and a query over the facts of all selections takes its time, however few it is for."""


def params(config: Config) -> dict[str, Any]:
    """The verifier's version; it has no settings."""
    return {"verifier": verifier.VERSION}


def plan(store: Store, config: Config) -> list[Unit]:
    """One unit for each label that was written; it changes with the label's text and with the facts."""
    facts = {row["selection_id"]: row["facts"] for row in store.sql(FACTS_DIGESTS).to_pylist()}
    labels = store.sql(
        "SELECT label_id, selection_id, md5(graph) AS graph FROM labels WHERE state = 'ok' ORDER BY label_id"
    ).to_pylist()
    return [
        Unit(NAME, VERSION, params(config), {**label, "facts": facts.get(label["selection_id"])}) for label in labels
    ]


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The label, its selection's mode and facts, and payload and trace of the candidate that was selected."""
    labels = store.grouped("labels", "label_id", [unit.inputs["label_id"] for unit in units])
    ids = [row["selection_id"] for rows in labels.values() for row in rows]
    selections, facts = (store.grouped(name, "selection_id", ids) for name in ("selections", "facts"))
    traces = store.grouped("traces", "candidate_id", [row["candidate_id"] for id in ids for row in selections[id]])
    payloads = []
    for unit in units:
        label = labels[unit.inputs["label_id"]][0]
        selection = selections[label["selection_id"]][0]
        trace = traces[selection["candidate_id"]][0]
        payload = {
            "label_id": label["label_id"],
            "selection_id": selection["selection_id"],
            "graph": label["graph"],
            "mode": selection["mode"],
            "tsel": trace["tsel"],
            "trace": trace["trace"],
            "facts": facts[selection["selection_id"]],
        }
        payloads.append(payload)
    return payloads


def work(payload: Payload, config: Config) -> Result:
    """Judge one label.

    Raises:
        ValueError: the tables hold an unsound payload, trace or fact.
    """
    finding = verifier.verify(payload["graph"], payload["tsel"], payload["trace"], payload["facts"], payload["mode"])
    row = {
        "label_id": payload["label_id"],
        "selection_id": payload["selection_id"],
        "state": finding.state,
        "reason": finding.reason,
        "detail": finding.detail,
        "citations": finding.citations,
        "computations": finding.computations,
        "claims": finding.claims,
        "verifier_version": verifier.VERSION,
    }
    return Result({"checks": [row]}, "ok" if finding.state == "ok" else "rejected", finding.reason, finding.detail)
