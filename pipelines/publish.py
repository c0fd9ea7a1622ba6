"""Stage publish: a row of `examples` for every label that passed the check, and from these the release folder.

One unit is a mode and a split, in slices of at most `LABELS` labels. The folder is written once all units are done:
every table is checked first, then it is built aside and put in the place of the old one in one step.
"""

import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from littledragon.pipelines import report
from littledragon.pipelines.config import Config
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.files import disk_error
from littledragon.pipelines.stage import Payload, Result, Unit
from littledragon.pipelines.store import Store
from littledragon.release import card, dataset, examples, leakage, prompts
from littledragon.schemas import tables
from littledragon.schemas.gates import GATES
from littledragon.schemas.ids import digest
from littledragon.validators import expectations

NAME: Final = "publish"
VERSION: Final = 2
TABLES: Final = ("examples",)

LABELS: Final = 2_000
"""Of one unit at most."""
SLICE: Final = 1
"""A payload is large: one at a time."""

READY = """
    SELECT l.label_id, s.mode, w.split, s.environment_id, l.unit_id AS label_unit, c.unit_id AS check_unit,
        s.unit_id AS selection_unit, w.unit_id AS workload_unit, a.unit_id AS anchor_unit, v.unit_id AS verdict_unit
    FROM labels l
    JOIN checks c ON c.label_id = l.label_id AND c.state = 'ok'
    JOIN selections s ON s.selection_id = l.selection_id AND s.state = 'ok'
    JOIN workloads w ON w.workload_id = s.workload_id AND w.state = 'ok'
    JOIN anchors a ON a.workload_id = s.workload_id AND a.environment_id = s.environment_id AND a.state = 'ok'
    JOIN verdicts v ON v.workload_id = s.workload_id AND v.environment_id = s.environment_id
        AND v.candidate_id = s.candidate_id
    WHERE l.state = 'ok'
    ORDER BY s.mode, w.split, l.label_id
"""


def params(config: Config) -> dict[str, Any]:
    """The rows depend on the prompt's templates; the environment that they speak of is that of the measurements."""
    return {"prompts": prompts.version()}


def plan(store: Store, config: Config) -> list[Unit]:
    """A unit for every slice of the labels of a mode and a split; a unit changes when a row behind it was redone."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in store.sql(READY).to_pylist():
        groups.setdefault((row["mode"], row["split"]), []).append(row)
    settings = params(config)
    return [
        Unit(NAME, VERSION, settings, {"mode": mode, "split": split, "labels": _ids(part), "rows": digest(part)})
        for (mode, split), rows in groups.items()
        for part in (rows[i : i + LABELS] for i in range(0, len(rows), LABELS))
    ]


def _ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["label_id"] for row in rows]


def load(store: Store, units: Sequence[Unit], config: Config) -> list[Payload]:
    """The rows that each label of a unit needs."""
    return [_payload(store, unit) for unit in units]


def _payload(store: Store, unit: Unit) -> Payload:
    labels = store.chosen("labels", "label_id", unit.inputs["labels"])
    selections = store.chosen("selections", "selection_id", [label["selection_id"] for label in labels])
    workloads = {s["workload_id"] for s in selections}
    return {
        "labels": labels,
        "selections": selections,
        "checks": store.chosen("checks", "label_id", unit.inputs["labels"]),
        "environments": store.rows("environments"),
        "workloads": store.chosen("workloads", "workload_id", sorted(workloads), "state = 'ok'"),
        "anchors": store.chosen("anchors", "workload_id", sorted(workloads)),
        "verdicts": store.chosen("verdicts", "workload_id", sorted(workloads)),
        "traces": store.chosen("traces", "candidate_id", sorted({s["parent_id"] for s in selections} - {None})),
    }


def work(payload: Payload, config: Config) -> Result:
    """The rows of `examples`, those under embargo rejected."""
    selections = {row["selection_id"]: row for row in payload["selections"]}
    checks = {row["label_id"]: row for row in payload["checks"]}
    workloads = {row["workload_id"]: row for row in payload["workloads"]}
    anchors = {(row["workload_id"], row["environment_id"]): row for row in payload["anchors"]}
    verdicts = {(row["candidate_id"], row["environment_id"]): row for row in payload["verdicts"]}
    tsel = {row["candidate_id"]: row["tsel"] for row in payload["traces"]}
    words = {row["environment_id"]: prompts.environment(row) for row in payload["environments"]}
    rows = []
    for label in payload["labels"]:
        selection = selections[label["selection_id"]]
        environment, parent = selection["environment_id"], selection["parent_id"]
        rows.append(
            examples.build(
                workload=workloads[selection["workload_id"]],
                environment=words[environment],
                selection=selection,
                label=label,
                check=checks[label["label_id"]],
                anchor=anchors[selection["workload_id"], environment],
                verdict=verdicts[selection["candidate_id"], environment],
                parent_verdict=verdicts[parent, environment] if parent else None,
                parent_tsel=tsel[parent] if parent else None,
            )
        )
    return Result({"examples": rows})


def finish(store: Store, config: Config) -> None:
    """Check every table, then build the release folder aside and swap it in.

    Raises:
        UserError: something that is no folder lies in the release's place, a unit failed, a rule of the tables does
            not hold, a held-out workload leaks, there is nothing to publish, or the disk refuses. What was there
            before stays as it is.
    """
    final = release_folder(store)
    try:
        dataset.check(final)
    except OSError as error:
        raise disk_error(final, error) from error
    failed = store.sql("SELECT unit_id, detail FROM outcomes WHERE stage = 'publish' AND state = 'failed'").to_pylist()
    if failed:
        raise UserError(
            f"publish: {len(failed)} units failed, so nothing was released: mend the cause and use --retry failed; "
            f"the first: {failed[0]['detail']}"
        )
    leaks = leakage.report(store.sql(report.HELD_APART).to_pylist())
    problems = [str(failure) for failure in expectations.check(_frames(store))] + leakage.leaks(leaks)
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        shown = "; ".join(problems[:10])
        raise UserError(f"publish: {len(problems)} rules do not hold, so nothing was released: {shown}{more}")
    if not store.sql("SELECT 1 FROM examples WHERE state = 'ok' LIMIT 1").num_rows:
        raise UserError(
            "publish: no example passed every check, so nothing was released: `dragon status` shows where they stopped"
        )
    try:
        folder = dataset.aside(final)
        try:
            build(store, config, folder, leaks)
            dataset.replace(final)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise disk_error(final, error) from error


def release_folder(store: Store) -> Path:
    """Where the release of a work directory lies."""
    return store.path / "release"


def build(store: Store, config: Config, folder: Path, leaks: list[dict[str, Any]]) -> None:
    """Write the whole release into an empty folder; `leaks` is the report of `release.leakage`."""
    schema = dataset.published(tables.EXAMPLES.arrow(), ("unit_id", *(c.name for c in tables.STATE_COLUMNS)))
    parts = [
        dataset.write(folder, name, split, schema, _examples(store, mode, split))
        for mode, name in examples.CONFIGS.items()
        for split in dataset.SPLITS
    ]
    tasks = dataset.tasks_schema()
    parts += [dataset.write(folder, "tasks", split, tasks, [store.sql(TASKS, split=split)]) for split in dataset.SPLITS]
    funnel = store.sql("SELECT family, gate, candidates FROM funnel ORDER BY ALL").cast(FUNNEL)
    metadata = {
        "workloads": store.sql("SELECT * FROM workloads ORDER BY block_id, configuration, task"),
        "environments": store.sql("SELECT * FROM environments ORDER BY environment_id"),
        "funnel": funnel,
        "verdicts": store.sql("SELECT * FROM verdicts ORDER BY workload_id, environment_id, candidate_id"),
        "checks": store.sql("SELECT * FROM checks ORDER BY label_id"),
        "leakage": pa.Table.from_pylist(leaks, schema=leakage.SCHEMA),
    }
    (folder / "metadata").mkdir()
    for name, table in metadata.items():
        known = tables.BY_NAME[name].arrow() if name in tables.BY_NAME else table.schema
        wanted = dataset.published(known, ("unit_id", *_observed(name)))
        path = folder / "metadata" / f"{name}.parquet"
        parts.append(dataset.write_file(folder, path, f"metadata_{name}", "train", wanted, [table]))
    (folder / "LICENSE").write_text(_licence(), encoding="utf-8")
    facts = card.Facts(
        environments=_environments(metadata["environments"]),
        funnel=_filtered(store, funnel.to_pylist()),
        leakage=leakage.summary(leaks),
        teachers=store.sql(TEACHERS).to_pylist(),
        families=store.sql(FAMILIES).to_pylist(),
        margin_floor=config.margin_floor,
        stable_band=config.stable_band,
    )
    text = card.render([part for part in parts if part is not None], facts)
    (folder / "README.md").write_text(text, encoding="utf-8")
    dataset.seal(folder)


FUNNEL: Final = pa.schema(
    [
        pa.field("family", pa.string(), True, {"about": "The family."}),
        pa.field("gate", pa.string(), True, {"about": "The gate."}),
        pa.field("candidates", pa.int64(), True, {"about": "Proposed candidates that passed it."}),
    ]
)

TASKS = """
    SELECT w.*, e.target, a.environment_id, a.default_us, a.anchor_us, a.noise_band, a.margin
    FROM anchors a
    JOIN workloads w ON w.workload_id = a.workload_id AND w.state = 'ok'
    JOIN environments e ON e.environment_id = a.environment_id
    WHERE a.state = 'ok' AND w.split = $split
    ORDER BY a.workload_id, a.environment_id
"""

TEACHERS = """
    SELECT l.teacher, l.model, count(*) AS rows
    FROM examples x JOIN labels l ON l.label_id = x.label_id WHERE x.state = 'ok' GROUP BY ALL ORDER BY ALL
"""

FAMILIES = """
    SELECT family, count(DISTINCT workload_id) AS workloads, count(*) FILTER (mode = 'construct') AS construction,
        count(*) FILTER (mode = 'refine') AS refinement
    FROM examples WHERE state = 'ok' GROUP BY family ORDER BY family
"""


def _examples(store: Store, mode: str, split: str) -> Iterator[pa.Table]:
    """The published rows of a mode and a split in order of their ids, one row group at a time."""
    where = "state = 'ok' AND mode = $mode AND split = $split"
    ids = store.sql(f"SELECT example_id FROM examples WHERE {where} ORDER BY example_id", mode=mode, split=split)
    rows = f"SELECT * FROM examples WHERE {where} AND example_id BETWEEN $first AND $last ORDER BY example_id"
    for start in range(0, ids.num_rows, dataset.ROWS_PER_GROUP):
        part = ids.column(0)[start : start + dataset.ROWS_PER_GROUP]
        yield store.sql(rows, mode=mode, split=split, first=part[0].as_py(), last=part[-1].as_py())


def _observed(table: str) -> list[str]:
    """Columns that name a host or a clock: not for publication."""
    return [c.name for c in tables.BY_NAME[table].columns if c.observed] if table in tables.BY_NAME else []


def _licence() -> str:
    """The text of the licence, as it was installed with the package."""
    text = distribution("littledragon").read_text("licenses/LICENSE")
    if text is None:
        raise UserError("publish: the package was installed without its LICENSE: install it again")
    return text


def _filtered(store: Store, funnel: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What became of workloads, candidates and labels, as tables with their titles."""
    gates: dict[str, dict[str, Any]] = {}
    for row in funnel:
        gates.setdefault(row["family"], {"family": row["family"]})[row["gate"]] = row["candidates"]
    reasons = "SELECT state, reason, count(*) AS {} FROM {} GROUP BY ALL ORDER BY ALL"
    return {
        "Candidates that passed each gate": [
            {k: row[k] for k in ("family", *GATES) if k in row} for row in gates.values()
        ],
        **{
            title: store.sql(reasons.format(table, table)).to_pylist()
            for title, table in {
                "Workloads": "workloads",
                "Default schedules and anchors": "anchors",
                "Choices for teaching": "selections",
                "Labels": "labels",
                "Labels after the check": "checks",
            }.items()
        },
    }


def _environments(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.select([c.name for c in tables.ENVIRONMENTS.columns]).to_pylist()
    return rows


LONG_TEXT: Final = (
    "module",
    "script",
    "features",
    "trace",
    "tsel",
    "graph",
    "completion_json",
    "text",
    "value",
    "derivation",
)
"""Columns that the rules look at for presence only: a letter of each is enough, and pandas keeps equal letters once."""


def _frames(store: Store) -> dict[str, Any]:
    """Every table as a pandas frame."""
    frames = {}
    for table in tables.TABLES:
        if table is tables.OUTCOMES:
            continue
        columns = [
            f'left("{c.name}", 1) AS "{c.name}"' if c.name in LONG_TEXT else f'"{c.name}"' for c in table.columns
        ]
        frames[table.name] = store.sql(f"SELECT {', '.join(columns)} FROM {table.name}").to_pandas()
    return frames
