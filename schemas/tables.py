"""Every table that the toolkit keeps: one sentence and one type for each column.

This is the one source of the Arrow schemas, the JSON Schemas and the views of `catalog.duckdb`. A table's
column names carry their units. The store puts `unit_id` in front of every row.
"""

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

STRING, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
STRINGS, INTS, FLOATS = pa.list_(STRING), pa.list_(INT), pa.list_(FLOAT)
FLOAT_LISTS = pa.list_(FLOATS)
MESSAGES = pa.list_(pa.struct([("role", STRING), ("content", STRING)]))
SPANS = pa.list_(pa.struct([("start", INT), ("end", INT), ("kind", STRING)]))


@dataclass(frozen=True)
class Column:
    """One column: its name (with the unit, where it has one), its Arrow type, and what it holds.

    `observed` marks what differs from run to run for reasons outside the inputs (a host, a clock): two runs
    on the simulated device are equal in all other columns.
    """

    name: str
    type: pa.DataType
    about: str
    null: bool = False
    observed: bool = False


@dataclass(frozen=True)
class Table:
    """A table of one stage."""

    name: str
    stage: str
    key: tuple[str, ...]
    about: str
    columns: tuple[Column, ...]
    of: tuple["Table", ...] = ()
    """The tables that it is a view of; a table with rows of its own is a view of none."""
    sql: str = ""
    """The SELECT that makes it of them."""

    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's rows, `unit_id` first; each field carries its sentence."""
        fields = [pa.field("unit_id", STRING, False, {"about": "The unit of work that wrote the row."})]
        fields += [pa.field(c.name, c.type, c.null, {"about": c.about}) for c in self.columns]
        return pa.schema(fields, {"about": self.about})

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of one row."""
        properties = {c.name: {"description": c.about, **_json_type(c.type, c.null)} for c in self.columns}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.name,
            "description": self.about,
            "type": "object",
            "properties": properties,
            "required": [c.name for c in self.columns],
            "additionalProperties": False,
        }


def _json_type(kind: pa.DataType, null: bool) -> dict[str, Any]:
    if pa.types.is_list(kind):
        body: dict[str, Any] = {"type": "array", "items": _json_type(kind.value_type, False)}
    elif pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        body = {
            "type": "object",
            "properties": {f.name: _json_type(f.type, False) for f in fields},
            "required": [f.name for f in fields],
            "additionalProperties": False,
        }
    else:
        body = {"type": {STRING: "string", INT: "integer", FLOAT: "number", BOOL: "boolean"}[kind]}
    return {"anyOf": [body, {"type": "null"}]} if null else body


STATE_COLUMNS: Final = (
    Column("state", STRING, "ok, rejected or failed."),
    Column("reason", STRING, "Why the row is rejected or failed, from the closed list.", null=True),
    Column("detail", STRING, "The particulars of the reason, for a person.", null=True),
)

OUTCOMES: Final = Table(
    "outcomes",
    "*",
    ("unit_id",),
    "How each unit of each stage ended.",
    (
        Column("stage", STRING, "The stage that the unit belongs to."),
        *STATE_COLUMNS,
        Column("inputs", STRING, "The unit's exact inputs, as canonical JSON."),
        Column("attempt", INT, "1 for the first try; higher after `--retry failed`.", observed=True),
        Column("started_at", STRING, "When the unit began, UTC, ISO 8601.", observed=True),
        Column("wall_s", FLOAT, "Seconds that the unit took.", observed=True),
        Column("host", STRING, "The machine that ran it.", observed=True),
    ),
)

_WORKLOAD: Final = (
    Column("workload_id", STRING, "`w-` and a hash of the normalised module; null where there is none.", null=True),
    *STATE_COLUMNS,
    Column("family", STRING, "attention, gemm, moe, norm_reduction, quant_irregular or vision."),
    Column("operator", STRING, "The operator at the heart of it, as the zoo names it."),
    Column("block_id", STRING, "The zoo block: family, operator and model; or the user's own model."),
    Column("configuration", STRING, "Which of the block's configurations: shard, batch, lengths, dtype."),
    Column("task", STRING, "The function that task extraction made of it.", null=True),
    Column("description", STRING, "The task description d of the prompt.", null=True),
    Column("module", STRING, "M0 as `tvm.ir.save_json`, its function named `main`.", null=True),
    Column("script", STRING, "M0 as printed TVMScript.", null=True),
    Column("module_hash", STRING, "Structural hash of the normalised module.", null=True),
    Column("features", STRING, "F(M0) as canonical JSON; see schemas/features.py.", null=True),
    Column("dtype", STRING, "The type of the first input buffer.", null=True),
    Column("flops", FLOAT, "Arithmetic operations of one run.", null=True),
    Column("bytes_min", INT, "Bytes of all inputs and outputs, each counted once.", null=True),
    Column("inputs", STRING, "How to make each argument, as JSON; see compiler/inputs.py.", null=True),
    Column("signature", STRING, "The anchor block's signature, blind to dtype and epilogue.", null=True),
    Column("extents", INTS, "The anchor block's iteration extents.", null=True),
    Column("rules", STRING, "MetaSchedule's rule set that is predicted to find candidates on the target.", null=True),
    Column("model", STRING, "The published model whose shapes these are."),
    Column("source", STRING, "Where that configuration is published."),
    Column("licence", STRING, "Licence of that source."),
)

EXTRACTIONS: Final = Table(
    "extractions",
    "workloads",
    ("block_id", "configuration", "task"),
    "The tasks of every zoo block, before duplicates are merged.",
    _WORKLOAD,
)

_PLACE: Final = (
    Column("cell", STRING, "Hash of (signature, extents).", null=True),
    Column("split", STRING, "train, validation, test or embargo.", null=True),
)

PLACEMENTS: Final = Table(
    "placements",
    "workloads",
    ("block_id", "configuration", "task"),
    "What became of each accepted extraction among all others: kept with its cell and split, or rejected.",
    (
        Column("block_id", STRING, "The zoo block."),
        Column("configuration", STRING, "Its configuration."),
        Column("task", STRING, "The extracted function."),
        *STATE_COLUMNS,
        *_PLACE,
    ),
)


def _joined() -> str:
    """Extractions with what the reduce made of them; an accepted one is shown once the reduce has placed it."""
    placed = {name: f"coalesce(p.{name}, e.{name})" for name in ("state", "reason", "detail")}
    placed["workload_id"] = "case when p.state = 'ok' then e.workload_id end"
    columns = [f"{placed.get(c.name, f'e.{c.name}')} as {c.name}" for c in _WORKLOAD]
    return (
        f"select coalesce(p.unit_id, e.unit_id) as unit_id, {', '.join(columns)}, p.cell, p.split "
        "from extractions as e left join placements as p "
        "on e.state = 'ok' and (e.block_id, e.configuration, e.task) = (p.block_id, p.configuration, p.task) "
        "where e.state <> 'ok' or p.state is not null"
    )


WORKLOADS: Final = Table(
    "workloads",
    "workloads",
    ("block_id", "configuration", "task"),
    "Distinct workloads with their cell and split; the rejected ones with their reason.",
    (*_WORKLOAD, *_PLACE),
    of=(EXTRACTIONS, PLACEMENTS),
    sql=_joined(),
)

IMPORTS: Final = Table(
    "imports",
    "import",
    ("candidate_id", "database"),
    "Records of MetaSchedule databases that `dragon import` took, each with the first gate that it failed.",
    (
        Column("candidate_id", STRING, "The candidate that the trace is for the search."),
        Column("workload_id", STRING, "The workload, found by what its program is."),
        Column("target", STRING, "llvm or cuda."),
        Column("database", STRING, "Hash of the database's two files."),
        Column("line", INT, "The record's line in `database_tuning_record.json`, from 1."),
        Column("trace", STRING, "The canonical trace."),
        Column("status", STRING, "The first gate that it failed on M0, or ok: then the search measures it."),
        Column("reason", STRING, "What the gate said.", null=True),
    ),
)

ENVIRONMENTS: Final = Table(
    "environments",
    "search",
    ("environment_id",),
    "What is set where latencies were measured. Latencies of two environments are never compared.",
    (
        Column("environment_id", STRING, "Hash of all other columns."),
        Column("target", STRING, "The TVM target, as canonical JSON."),
        Column("device", STRING, "real or simulated."),
        Column("processor", STRING, "Model of the CPU or GPU that runs the kernels."),
        Column("driver", STRING, "Driver and CUDA version, or the LLVM version."),
        Column("tvm", STRING, "Version of apache-tvm."),
        Column("tvm_ffi", STRING, "Version of apache-tvm-ffi."),
        Column("codec", STRING, "Version of the schedule language."),
        Column("settings", STRING, "Repeats, cache flushing, a CPU's threads, a GPU's timer: canonical JSON."),
    ),
)

CANDIDATES: Final = Table(
    "candidates",
    "search",
    ("candidate_id",),
    "Schedules that the search proposed, each with the first gate that it failed.",
    (
        Column("candidate_id", STRING, "`c-` and a hash of workload, target and canonical trace."),
        Column("workload_id", STRING, "The workload that it schedules."),
        Column("environment_id", STRING, "Where it was measured."),
        Column(
            "source",
            STRING,
            "default (L0's schedule), evolutionary, random (nothing learned yet, or the search gave up), imported.",
        ),
        Column("rules", STRING, "The rule set that proposed it: llvm, cuda, cuda-tensorcore or cuda-local."),
        Column("round", INT, "The round of the search, from 0."),
        Column("status", STRING, "The first gate that it failed, or ok."),
        Column("reason", STRING, "What the gate said.", null=True),
        Column("module_hash", STRING, "Structural hash of the scheduled module.", null=True),
        Column("score", FLOAT, "What the cost model predicted, higher is faster.", null=True),
        Column("latency_us", FLOAT, "Median of five repeats in one process.", null=True),
        Column("repeats_us", FLOATS, "The five repeats.", null=True),
        Column("error", FLOAT, "Largest error over its bound; correct when at most 1.", null=True),
        Column("build_s", FLOAT, "Seconds that compiling took.", null=True, observed=True),
        Column("headers", STRING, "CUDA: headers that it was compiled with, slim or full.", null=True, observed=True),
    ),
)

TRACES: Final = Table(
    "traces",
    "search",
    ("candidate_id",),
    "The trace of every candidate that parses; the default schedule has none.",
    (
        Column("candidate_id", STRING, "The candidate."),
        Column("trace", STRING, "`tvm.ir.save_json(trace.as_json())`, canonical and whole."),
        Column("tsel", STRING, "The payload in the `line` notation, once it was encoded.", null=True),
        Column(
            "postproc_rules", STRING, "The rule set that names the payload's post-processing; null: spelled.", null=True
        ),
        Column("instructions", INT, "Instructions, the boundary counted."),
        Column("postproc_instructions", INT, "Of these, after the boundary."),
    ),
)

VERDICTS: Final = Table(
    "verdicts",
    "verify",
    ("workload_id", "environment_id", "candidate_id"),
    "What three fresh processes and the full numerical check found of each chosen candidate.",
    (
        Column("workload_id", STRING, "The workload."),
        Column("candidate_id", STRING, "The candidate."),
        Column("environment_id", STRING, "Where it was measured."),
        Column("role", STRING, "default, best or parent."),
        Column("status", STRING, "The first gate that it failed, or ok."),
        Column("reason", STRING, "What the gate said.", null=True),
        Column("latency_us", FLOAT, "Median of the three processes' medians.", null=True),
        Column("medians_us", FLOATS, "The three medians of five.", null=True),
        Column("repeats_us", FLOAT_LISTS, "The five repeats of each process.", null=True),
        Column("noise_band", FLOAT, "(max - min) / median of the three medians.", null=True),
        Column("cases", INT, "Numerical cases that were compared."),
        Column("error", FLOAT, "Largest error over its bound, over all cases.", null=True),
        Column("observed", STRING, "Clock, load, temperature while timing: JSON.", null=True, observed=True),
    ),
)

ANCHORS: Final = Table(
    "anchors",
    "verify",
    ("workload_id", "environment_id"),
    "Default latency L0, anchor latency a and noise band of each workload in each environment.",
    (
        Column("workload_id", STRING, "The workload."),
        Column("environment_id", STRING, "Where it was measured."),
        *STATE_COLUMNS,
        Column("default_id", STRING, "The candidate of the default schedule.", null=True),
        Column("anchor_id", STRING, "The candidate with the best verified latency.", null=True),
        Column("default_us", FLOAT, "L0.", null=True),
        Column("anchor_us", FLOAT, "a.", null=True),
        Column("empty_us", FLOAT, "An empty kernel, timed the same way.", null=True),
        Column("noise_band", FLOAT, "Larger of the noise bands of L0 and the anchor.", null=True),
        Column("margin", FLOAT, "max(0.05, 2 * noise_band).", null=True),
    ),
)

SELECTIONS: Final = Table(
    "selections",
    "pairs",
    ("selection_id",),
    "What is to be taught; and for every candidate that is not used in a mode, why.",
    (
        Column("selection_id", STRING, "`s-` and a hash of workload, environment, mode, candidate and parent."),
        Column("workload_id", STRING, "The workload."),
        Column("environment_id", STRING, "Where its latencies were measured."),
        Column("mode", STRING, "construct or refine."),
        *STATE_COLUMNS,
        Column("candidate_id", STRING, "The schedule to be written."),
        Column("parent_id", STRING, "Refining: the slower schedule A.", null=True),
        Column("ratio", FLOAT, "L0 / a when constructing, L_A / L_B when refining.", null=True),
        Column("margin", FLOAT, "The margin that ratio - 1 exceeds.", null=True),
        Column("gain_band", STRING, "Refining: the band of the ratio, as the prompt asks for it.", null=True),
    ),
)

FACTS: Final = Table(
    "facts",
    "pairs",
    ("selection_id", "path"),
    "What may be cited of each selection, each fact with its derivation.",
    (
        Column("selection_id", STRING, "The selection."),
        Column("path", STRING, "`in.…` for what the prompt shows, `out.…` for what the payload yields."),
        Column("value", STRING, "The value, as canonical JSON."),
        Column("text", STRING, "The words that quote it."),
        Column("derivation", STRING, "How it follows from the source."),
        Column("position", INT, "Order within the selection."),
    ),
)

LABELS: Final = Table(
    "labels",
    "teach",
    ("label_id",),
    "Explained graphs, as the teacher wrote them around a fixed payload.",
    (
        Column("label_id", STRING, "`l-` and a hash of selection, teacher, model and prompt version."),
        Column("selection_id", STRING, "What is explained."),
        Column("mode", STRING, "construct or refine."),
        *STATE_COLUMNS,
        Column("teacher", STRING, "facts (templates over facts) or openai (a model behind an endpoint)."),
        Column("model", STRING, "The model's name; `templates` for facts."),
        Column("prompt_version", STRING, "Name and hash of the prompt template."),
        Column("graph", STRING, "The whole graph in the `line` notation.", null=True),
        Column("asks", INT, "Requests that were made, re-asks counted."),
        Column("tokens_in", INT, "Prompt tokens that the endpoint reported.", observed=True),
        Column("tokens_out", INT, "Completion tokens that the endpoint reported.", observed=True),
    ),
)

CHECKS: Final = Table(
    "checks",
    "check",
    ("label_id",),
    "What the static verifier found of each label.",
    (
        Column("label_id", STRING, "The label."),
        Column("selection_id", STRING, "What it explains."),
        *STATE_COLUMNS,
        Column("citations", INT, "Citations that were compared with their source."),
        Column("computations", INT, "Arithmetic statements that were computed."),
        Column("claims", INT, "Statements about the payload that were tested on it."),
        Column("verifier_version", INT, "Version of the verifier."),
    ),
)

EXAMPLES: Final = Table(
    "examples",
    "publish",
    ("example_id",),
    "The rows that are published.",
    (
        Column("example_id", STRING, "`x-` and a hash of the messages and the completion."),
        *STATE_COLUMNS,
        Column("mode", STRING, "construct or refine."),
        Column("split", STRING, "train, validation or test."),
        Column("family", STRING, "The workload's family."),
        Column("operator", STRING, "The workload's operator."),
        Column("workload_id", STRING, "The workload; its module stands in `tasks`."),
        Column("environment_id", STRING, "Where the latencies were measured."),
        Column("candidate_id", STRING, "The schedule that is taught."),
        Column("parent_id", STRING, "Refining: the supplied schedule A.", null=True),
        Column("selection_id", STRING, "The selection."),
        Column("label_id", STRING, "The label."),
        Column("teacher", STRING, "Who explained it."),
        Column("gain_band", STRING, "Refining: the band that the prompt asks for.", null=True),
        Column("messages", MESSAGES, "The prompt, as chat messages."),
        Column("completion", STRING, "The answer: the whole graph in the `line` notation."),
        Column("spans", SPANS, "Character spans of `completion` that tile it: explanation, decision, structure."),
        Column("completion_json", STRING, "The same graph in the `json` notation; the spans are not of this one."),
        Column("latency_us", FLOAT, "Verified latency of the schedule that is taught."),
        Column("parent_us", FLOAT, "Refining: verified latency of A.", null=True),
        Column("default_us", FLOAT, "L0."),
        Column("anchor_us", FLOAT, "a."),
        Column("noise_band", FLOAT, "Noise band of the workload."),
    ),
)

TABLES: Final = (
    OUTCOMES,
    EXTRACTIONS,
    PLACEMENTS,
    WORKLOADS,
    IMPORTS,
    ENVIRONMENTS,
    CANDIDATES,
    TRACES,
    VERDICTS,
    ANCHORS,
    SELECTIONS,
    FACTS,
    LABELS,
    CHECKS,
    EXAMPLES,
)
BY_NAME: Final = {table.name: table for table in TABLES}
