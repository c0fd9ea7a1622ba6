"""The dataset card: YAML that `datasets` and the Hub read, then what a reader needs to know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import pyarrow as pa
import yaml

from littledragon.release.dataset import SPLITS, Part
from littledragon.schemas.ids import digest

TEMPLATE: Final = Path(__file__).parent / "templates" / "card.md"
EXAMPLE_CONFIGS: Final = ("construction", "refinement")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Facts:
    """What the card says beyond the files themselves."""

    environments: Sequence[Row]
    """Rows of `environments`."""
    funnel: Mapping[str, Sequence[Row]]
    """What became of workloads, candidates and labels: tables of any columns, by title."""
    leakage: Sequence[Row]
    """Rows of `release.leakage.summary`."""
    teachers: Sequence[Row]
    """`teacher`, `model` and `rows` of the published labels."""
    families: Sequence[Row]
    """`family`, then one count for each configuration."""
    margin_floor: float
    stable_band: float
    title: str = "Little Dragon"
    place: str = "<folder>"


def render(parts: Sequence[Part], facts: Facts) -> str:
    """The README.md of a release that holds these files."""
    tvm = sorted({e["tvm"] for e in facts.environments})
    simulated = any(e["device"] == "simulated" for e in facts.environments)
    body = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=facts.title,
        place=facts.place,
        counts=table(facts.families),
        teachers=_teachers(facts.teachers),
        configs=_configs(parts),
        empty=_empty(parts),
        columns=_columns(parts),
        funnel="\n\n".join(f"{title}:\n\n{table(rows)}" for title, rows in facts.funnel.items()),
        environments=table(facts.environments),
        leakage=table(facts.leakage),
        margin_floor=f"{facts.margin_floor:g}",
        stable_band=f"{100 * facts.stable_band:g}%",
        tvm=", ".join(tvm) or "its own version",
        warning=SIMULATED if simulated else "",
    )
    head = yaml.safe_dump(_head(parts, facts), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{head}---\n\n{body}"


SIMULATED: Final = (
    "**The latencies and numerical checks here are invented by the simulated device: use them to test tools only.**\n\n"
)


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table; `none` where there are none."""
    if not rows:
        return "none"
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _head(parts: Sequence[Part], facts: Facts) -> dict[str, Any]:
    by_config: dict[str, list[Part]] = {}
    for part in parts:
        by_config.setdefault(part.config, []).append(part)
    rows = sum(part.rows for part in parts if part.config in EXAMPLE_CONFIGS)
    size = next(name for least, name in _SIZES if rows >= least)
    default = next((name for name in EXAMPLE_CONFIGS if name in by_config), None)
    return {
        "pretty_name": facts.title,
        "license": "apache-2.0",
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["code", "compiler", "tvm", "kernel-optimization"],
        "size_categories": [size],
        "configs": [
            {
                "config_name": name,
                **({"default": True} if name == default else {}),
                "data_files": [{"split": part.split, "path": part.path} for part in of_config],
            }
            for name, of_config in by_config.items()
        ],
        "dataset_info": [_info(name, of_config) for name, of_config in by_config.items()],
    }


_SIZES: Final = (
    (1_000_000, "1M<n<10M"),
    (100_000, "100K<n<1M"),
    (10_000, "10K<n<100K"),
    (1_000, "1K<n<10K"),
    (0, "n<1K"),
)


def _info(name: str, parts: list[Part]) -> dict[str, Any]:
    """`datasets` keeps rows of an older build in its cache unless this changes, so it names the content."""
    return {
        "config_name": name,
        "description": f"content {digest([part.sha256 for part in parts])}",
        "features": _features(parts[0].schema),
        "splits": [{"name": p.split, "num_bytes": p.arrow_bytes, "num_examples": p.rows} for p in parts],
        "download_size": sum(part.bytes for part in parts),
        "dataset_size": sum(part.arrow_bytes for part in parts),
    }


def _features(schema: pa.Schema) -> list[dict[str, Any]]:
    from datasets import Features

    features: list[dict[str, Any]] = Features.from_arrow_schema(schema)._to_yaml_list()
    return features


def _configs(parts: Sequence[Part]) -> str:
    return table([{"configuration": p.config, "split": p.split, "rows": p.rows, "file": p.path} for p in parts])


def _empty(parts: Sequence[Part]) -> str:
    there = {(part.config, part.split) for part in parts}
    missing = [
        f"{config} {split}"
        for config in (*EXAMPLE_CONFIGS, "tasks")
        for split in SPLITS
        if (config, split) not in there
    ]
    return ", ".join(missing) or "there are none such"


def _columns(parts: Sequence[Part]) -> str:
    """One section for each distinct schema."""
    sections: dict[str, tuple[pa.Schema, list[str]]] = {}
    for part in parts:
        key = "\n".join(map(str, part.schema))
        names = sections.setdefault(key, (part.schema, []))[1]
        if part.config not in names:
            names.append(part.config)
    return "\n\n".join(
        f"### {', '.join(names)}\n\n"
        + table(
            [{"column": f.name, "type": str(f.type).replace("item: ", ""), "what it holds": _about(f)} for f in schema]
        )
        for schema, names in sections.values()
    )


def _about(field: pa.Field) -> str:
    about: bytes = (field.metadata or {}).get(b"about", b"")
    return about.decode()


def _teachers(rows: Sequence[Row]) -> str:
    """Who wrote the explanations."""
    if not rows:
        return ""
    names = [
        f"{row['rows']} were written by templates over facts (teacher `facts`)"
        if row["teacher"] == "facts"
        else f"{row['rows']} were written by the model {_cell(row['model'])} (teacher `{_cell(row['teacher'])}`)"
        for row in rows
    ]
    return "Of the explanations, " + " and ".join(names) + "."
