"""Stage teach: a teacher writes the explanation of each selection around its fixed payload.

Two teachers stand behind one protocol: `facts`, templates over facts, and `openai`, a model behind an endpoint, which
is asked again with the verifier's objections. Neither can change the payload.
"""

import json
from collections.abc import Sequence
from string import Template
from typing import Any, Final

from littledragon.pipelines import llm
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.schemas import tsel
from littledragon.schemas.ids import content_id
from littledragon.teacher_prompts import facts_teacher, reply
from littledragon.teacher_prompts import load as load_template
from littledragon.teacher_prompts.protocol import Request, compose
from littledragon.validators import verifier

NAME: Final = "teach"
VERSION: Final = 2
TABLES: Final = ("labels",)
SLICE: Final = 256
"""Small payloads, and a query over the facts of all selections takes its time, however few it is for."""

FACTS_DIGESTS: Final = """
    SELECT selection_id, bit_xor(md5_number(concat_ws(chr(31), position, path, value, text)))::VARCHAR AS facts
    FROM facts GROUP BY selection_id
"""
"""What a teacher reads of each selection's facts, as one hash; of no more memory than that, however many they are."""
_PARTS: Final = "===\n"
"""Between the instructions and the question in the template `openai`."""

Row = dict[str, Any]


def params(config: Config) -> dict[str, Any]:
    """Who teaches. Where the endpoint is and how patiently it is asked does not change a label's worth."""
    return {"teacher": config.teacher, "model": model(config), "asks": asks(config)}


def model(config: Config) -> str:
    """The teacher's model.

    Raises:
        UserError: the teacher is an endpoint, and no model is named.
    """
    if config.teacher == "facts":
        return facts_teacher.MODEL
    if config.teacher_model == facts_teacher.MODEL:
        raise UserError("teacher_model: name the model of the endpoint, since teacher is openai")
    return config.teacher_model


def asks(config: Config) -> int:
    """Requests for one label at most."""
    return 1 if config.teacher == "facts" else config.teacher_asks


def plan(store: Store, config: Config) -> list[Unit]:
    """One unit for each selection that is to be taught."""
    facts = {row["selection_id"]: row["facts"] for row in store.sql(FACTS_DIGESTS).to_pylist()}
    version = load_template(config.teacher).version
    settings = params(config)
    selections = store.sql("SELECT selection_id FROM selections WHERE state = 'ok' ORDER BY selection_id").to_pylist()
    return [
        Unit(
            NAME,
            VERSION,
            settings,
            {
                "selection_id": row["selection_id"],
                "facts": facts.get(row["selection_id"]),
                "prompt": version,
                "verifier": verifier.VERSION,
            },
        )
        for row in selections
    ]


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The selection, its facts, and the chosen candidate's payload and trace."""
    ids = [unit.inputs["selection_id"] for unit in units]
    selections, facts = (store.grouped(name, "selection_id", ids) for name in ("selections", "facts"))
    traces = store.grouped("traces", "candidate_id", [row["candidate_id"] for id in ids for row in selections[id]])
    payloads = []
    for unit in units:
        selection = selections[unit.inputs["selection_id"]][0]
        trace = traces[selection["candidate_id"]][0]
        payload = {
            "selection_id": selection["selection_id"],
            "mode": selection["mode"],
            "prompt": unit.inputs["prompt"],
            "trace": trace["trace"],
            "tsel": trace["tsel"],
            "facts": sorted(facts[selection["selection_id"]], key=lambda row: row["position"]),
        }
        payloads.append(payload)
    return payloads


def work(payload: Payload, config: Config) -> Result:
    """Have the label written. Failed only for what may pass: the network, the endpoint, the deadline."""
    named = {
        "selection_id": payload["selection_id"],
        "teacher": config.teacher,
        "model": model(config),
        "prompt_version": payload["prompt"],
    }
    label: Row = {
        "label_id": content_id("l", named),
        **named,
        "mode": payload["mode"],
        "state": "ok",
        "reason": None,
        "detail": None,
        "graph": None,
        "asks": 1,
        "tokens_in": 0,
        "tokens_out": 0,
    }
    request = Request(payload["mode"], tsel.decode(payload["tsel"]).graph, payload["facts"])
    if config.teacher == "facts":
        label["graph"] = tsel.render(compose(request.graph, facts_teacher.explain(request))).text
    else:
        try:
            _ask(label, request, payload, config)
        except llm.LlmError as error:
            if error.kind not in llm.FINAL:
                return Result(state="failed", reason=error.kind, detail=error.detail)
            label |= {"state": "rejected", "reason": error.kind, "detail": error.detail}
    return Result({"labels": [label]}, label["state"], label["reason"], label["detail"])


def _ask(label: Row, request: Request, payload: Payload, config: Config) -> None:
    """Ask the model until its label stands before the verifier; fill the row in.

    Raises:
        LlmError: no answer.
    """
    messages = question(request, payload["tsel"])
    client = llm.Client(config.teacher_url, config.teacher_model, config.teacher_rpm, config.teacher_deadline_s)
    try:
        for number in range(1, config.teacher_asks + 1):
            answer = client.ask(messages)
            label["asks"] = number
            label["tokens_in"] += answer.tokens_in
            label["tokens_out"] += answer.tokens_out
            if len(answer.text) > reply.MAX_REPLY:
                raise llm.LlmError("too_long", f"the reply has {len(answer.text)} characters")
            graph, objections = judged(answer.text, request, payload["tsel"], payload["trace"])
            if graph is not None:
                label["graph"] = graph
                return
            messages = [*messages[:2], *again(answer.text, objections)]
    finally:
        client.close()
    label |= {"state": "rejected", "reason": "invalid_reply", "detail": objections}


def judged(text: str, request: Request, payload: str, trace: str) -> tuple[str | None, str]:
    """The label that a reply makes, if it stands before the verifier; else None and the objections."""
    try:
        graph = tsel.render(compose(request.graph, reply.parse(text, request))).text
    except (reply.InvalidReply, tsel.TselError) as error:
        return None, str(error)
    finding = verifier.verify(graph, payload, trace, request.facts, request.mode)
    return (graph, "") if finding.state == "ok" else (None, finding.detail or "")


def question(request: Request, payload: str) -> list[llm.Message]:
    """The dialogue that asks a model for one label."""
    instructions, asked = load_template("openai").text.split(_PARTS, 1)
    facts = "\n".join(_fact(fact) for fact in request.facts)
    filled = Template(asked).substitute(mode=request.mode, facts=facts, payload=payload)
    return [{"role": "system", "content": instructions.strip()}, {"role": "user", "content": filled.strip()}]


def _fact(fact: Any) -> str:
    return f"[{fact['path']}={verifier.quoted(json.loads(fact['value']))}] {fact['text']}"


def again(text: str, objections: str) -> Sequence[llm.Message]:
    """The turns that ask again, with what was wrong."""
    wish = f"The answer was refused: {objections}\nWrite the whole JSON object again, with these faults mended."
    return [{"role": "assistant", "content": text}, {"role": "user", "content": wish}]
