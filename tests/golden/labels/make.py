"""Write the golden facts and labels anew from the tasks that lie here: `python tests/golden/labels/make.py`.

`<name>.task.json` holds a workload, an environment, and two schedules, each as trace and as payload (graph A and what
is taught). The script writes the payloads anew, `<name>.facts.json` and `<name>.<mode>.xml`. Look at the difference
before committing it.
"""

import json
from pathlib import Path
from typing import Any

from littledragon.compiler.facts import derive, request
from littledragon.compiler.traces import admit
from littledragon.schemas import tsel
from littledragon.teacher_prompts.facts_teacher import explain
from littledragon.teacher_prompts.protocol import Request, compose

HERE = Path(__file__).parent


def facts(task: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The facts of both modes; derived in this process, so a wrong payload may end it."""
    common = (task["workload"], task["environment"])
    refine = derive(*common, "refine", task["tsel"], task["parent_tsel"])
    return {
        "construct": derive(*common, "construct", task["tsel"]),
        "refine": [*refine, request(task["gain_band"], len(refine))],
    }


def payload(task: dict[str, Any], trace: str) -> str:
    """The payload of a trace; admitted in this process, so a wrong trace may end it."""
    admitted = admit(task["workload"]["module"], trace, json.loads(task["environment"]["target"]))
    assert admitted["failed"] is None, admitted["reason"]
    return str(admitted["tsel"])


def label(task: dict[str, Any], mode: str, known: list[dict[str, Any]]) -> str:
    """The label that the facts teacher writes."""
    graph = tsel.decode(task["tsel"]).graph
    return tsel.render(compose(graph, explain(Request(mode, graph, known)))).text


def main() -> None:
    for path in sorted(HERE.glob("*.task.json")):
        task = json.loads(path.read_text(encoding="utf-8"))
        task |= {"tsel": payload(task, task["trace"]), "parent_tsel": payload(task, task["parent_trace"])}
        path.write_text(json.dumps(task, indent=1) + "\n", encoding="utf-8")
        name = path.name.removesuffix(".task.json")
        derived = facts(task)
        lines = ",\n".join(
            f'"{mode}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for mode, rows in derived.items()
        )
        (HERE / f"{name}.facts.json").write_text("{" + lines + "}\n", encoding="utf-8")
        for mode, rows in derived.items():
            (HERE / f"{name}.{mode}.xml").write_text(label(task, mode, rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
