"""Presets and settings: what is accepted, what is refused with one line that says what to do."""

import dataclasses
import os
from pathlib import Path

import pytest

from littledragon.pipelines.config import PRESETS, Config, load
from littledragon.pipelines.errors import UserError


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_loads(preset):
    config = load(preset)
    assert config.preset == preset
    for field in dataclasses.fields(Config):
        if isinstance(field.default, float):
            assert type(getattr(config, field.name)) is float, field.name


def test_presets_grow():
    smoke, gpu, paper = load("smoke"), load("gpu"), load("paper")
    for name in ("rounds", "candidates_per_round", "population", "verify_best", "verify_parents", "refine_per_band"):
        assert getattr(smoke, name) <= getattr(gpu, name) <= getattr(paper, name), name
    assert (smoke.target, gpu.target, paper.target) == ("llvm", "cuda", "cuda")


def test_a_file_lies_over_the_preset_and_options_over_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 3\nseed: 5\nfamilies: [gemm]\nrepeat_ms: 7\n")
    config = load("smoke", file, seed=9, limit=None)
    assert (config.rounds, config.seed, config.families, config.repeat_ms) == (3, 9, ("gemm",), 7.0)
    assert config.population == load("smoke").population
    assert type(config.repeat_ms) is float, "7 and 7.0 name the same units"
    file.write_text("# nothing yet\n")
    assert load("smoke", file) == load("smoke")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rounds: 0", "rounds: must be from 1 to 2147483647"),
        ("rounds: yes", "rounds: must be an integer"),
        ("rounds: '3'", "rounds: must be an integer"),
        ("rounds: 99999999999", "rounds: must be from 1 to 2147483647"),
        ("repeat_ms: -1", "repeat_ms: must be above 0"),
        ("repeat_ms: .nan", "repeat_ms: must be above 0"),
        ("target: metal", "target: must be one of llvm, cuda"),
        ("device: null", "device: must be one of real, simulated"),
        ("families: gemm", "families: must be a list"),
        ("teacher_model: 3", "teacher_model: must be text"),
        ("trials: 3", "unknown setting 'trials': choose one of .*rounds"),
        ("preset: paper", "cannot choose it: give --preset"),
        ("- rounds", "must be a mapping"),
        ("rounds: [", "cannot be read as YAML"),
        ("rounds: !!python/object/apply:os.system [true]", "cannot be read as YAML"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, text, said):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        load("smoke", file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load("smoke", path)
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00rounds")
    with pytest.raises(UserError, match=r"x\.yaml"):
        load("smoke", binary)


def test_an_unknown_preset_names_the_known_ones():
    for name in ("huge", "", "../presets/smoke", "smoke.yaml"):
        with pytest.raises(UserError, match="choose one of gpu, paper, smoke"):
            load(name)


def test_defaults_are_valid_settings(tmp_path):
    file = tmp_path / "all.yaml"
    import yaml

    values = {**Config().__dict__, "families": []}
    file.write_text(yaml.safe_dump(values))
    assert load("smoke", file) == Config()


def test_presets_are_found_where_they_are_installed():
    assert Path(PRESETS).is_dir()


def test_a_file_that_is_none_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.yaml").write_text("[" * 5000)
    (tmp_path / "long.yaml").write_text("# " + "x" * (1 << 20))
    for name, said in [
        (tmp_path / "pipe", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "deep.yaml", "nested too deeply"),
        (tmp_path / "long.yaml", "longer than 1 MiB"),
    ]:
        with pytest.raises(UserError, match=said) as caught:
            load("smoke", name)
        assert str(caught.value).startswith(f"{name}: ")


def test_a_value_that_unfolds_is_not_shown_in_full(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    file = tmp_path / "mine.yaml"
    file.write_text("seed:\n" + "".join(f"  {line}\n" for line in lines))
    with pytest.raises(UserError, match="seed: must be an integer") as caught:
        load("smoke", file)
    assert len(str(caught.value)) < 1000


def test_a_wrong_option_is_named_as_an_option(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 3\n")
    with pytest.raises(UserError, match=r"^--limit: must be from 1 to 2147483647, not 0$"):
        load("smoke", file, limit=0)
    with pytest.raises(UserError, match=r"^--teacher-url: must be text"):
        load("smoke", teacher_url=3)
