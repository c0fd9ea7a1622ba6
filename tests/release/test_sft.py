"""Supervised fine-tuning: what each token weighs, what the loss is, and that runs resume and refuse."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.pipelines import cli
from littledragon.release.trainers import __main__ as trainers
from littledragon.release.trainers import sft

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "release" / "trainers" / "sft.py"
Row = dict[str, Any]

PIECES = (
    ("structure", '<graph version="tsel/1" notation="line">\n'),
    ("explanation", '<evidence id="e1" cite="in.loop.k.extent">loop k has extent {extent}</evidence>'),
    ("structure", '\n<trace_sequence id="t0">\nl0-1 = tile b0 {extent} ['),
    ("decision", "{outer},{inner}"),
    ("structure", "]\n</trace_sequence>\n"),
    ("explanation", '<effect id="p1">An inner part of {inner} iterations.</effect>'),
    ("structure", "\n</graph>\n"),
)


def example(number: int, mode: str) -> Row:
    """A row of the release with a small graph, its spans and a prompt; refining, the dialogue holds an older graph."""
    outer, inner = 2 + number, 4
    said = [(kind, text.format(extent=outer * inner, outer=outer, inner=inner)) for kind, text in PIECES]
    spans, end = [], 0
    for kind, text in said:
        spans.append({"start": end, "end": end + len(text), "kind": kind})
        end += len(text)
    completion = "".join(text for _, text in said)
    messages = [{"role": "system", "content": "You write scripts."}, {"role": "user", "content": f"extent {number}"}]
    if mode == "refinement":
        messages += [{"role": "assistant", "content": completion[:40]}, {"role": "user", "content": "make it faster"}]
    name = f"x-{mode[0]}{number}"
    return {"example_id": name, "mode": mode, "messages": messages, "completion": completion, "spans": spans}


def write(folder: Path, rows: dict[str, list[Row]]) -> Path:
    for name, of_it in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(of_it), folder / name)
    return folder


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder in the release's layout: 2 construction rows and 6 refinement rows, and one of each to validate."""
    parts = {"construction": range(2), "refinement": range(6)}
    rows = {
        f"{config}/{split}-00000-of-00001.parquet": [example(n, config) for n in numbers]
        for config, train in parts.items()
        for split, numbers in (("train", train), ("validation", [7]))
    }
    return write(tmp_path / "release", rows)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    rows = [example(n, config) for n in range(3) for config in sft.CONFIGS]
    made, _ = sft.from_nothing("tiny", iter([rows]))
    made.chat_template = sft.PLAIN
    return made


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("b1 = block expert_w4a16\n", ["b", "1", "Ġ=ĠblockĠ", "expert_w4a16", "Ċ"]),
        ("v31 = tile l9 3584 [448,1]", ["v", "31", "Ġ=ĠtileĠl", "9", "Ġ", "3584", "Ġ[", "448", ",", "1", "]"]),
        ('cite="in.block.nt_matmul.loop.ax0.extent">', ['cite="in.block.', "nt_matmul", ".loop.", "ax0", '.extent">']),
        ("</trace_sequence>\n\n  x_1", ["</", "trace_sequence", ">Ċ", "Ċ", "ĠĠ", "x_1"]),
        ("9ab_c b0_c x1y2", ["9", "ab_cĠ", "b0_c", "Ġx", "1", "y", "2"]),
        ("a" * 8_000_000, ["a" * 9999] * 800 + ["a" * 800]),
        ("a " * 4_000_000, None),
        ("a1" * 100_000, None),
    ],
)  # fmt: skip
def test_numbers_and_identifiers_are_pieces_however_long_a_line_is(
    tokenizer: Any, text: str, pieces: list[str] | None
) -> None:
    found = [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces is None or found == pieces
    assert "".join(found) == text.replace(" ", "Ġ").replace("\n", "Ċ")


@pytest.mark.parametrize("text", ["ü 1½ \r\n\x00 __ _a", "é_a1_b <|end| >\n", "\U0001f409ax0"])
def test_no_text_is_changed_by_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def tiny_model(tokenizer: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, pad_token_id=tokenizer.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip


def trainer(out: Path, kind: Any, dataset: Any, tokenizer: Any, **more: Any) -> Any:
    from trl import SFTConfig

    config = SFTConfig(
        output_dir=str(out), max_steps=3, per_device_train_batch_size=2, per_device_eval_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none",
        max_length=None, bf16=False, gradient_checkpointing=False, disable_tqdm=True, dataloader_pin_memory=False,
        dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns="data_collator" not in more, seed=3,
    )  # fmt: skip
    model = tiny_model(tokenizer)
    return kind(model=model, args=config, processing_class=tokenizer, train_dataset=dataset, **more)


def collator(tokenizer: Any, weights: list[float]) -> Any:
    return partial(sft.collate, pad=tokenizer.pad_token_id, weights=weights)


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


@pytest.mark.parametrize("normaliser", ["weights", "tokens"])
def test_weights_of_one_give_the_losses_of_stock_trl(tmp_path: Path, tokenizer: Any, normaliser: str) -> None:
    import torch
    from trl import SFTTrainer

    ones = [1.0, 1.0, 1.0]
    ours_rows = sft.tokenise(iter([[example(n, "refinement") for n in range(6)]]), tokenizer, ones)
    stock_rows = ours_rows.map(
        lambda row: {"labels": [i if k else -100 for i, k in zip(row["input_ids"], row["kinds"], strict=True)]},
        remove_columns=["example_id", "kinds"],
    )
    stock = trainer(tmp_path / "stock", SFTTrainer, stock_rows, tokenizer)
    collate = collator(tokenizer, ones)
    ours = trainer(tmp_path / "ours", sft.trainer_class(normaliser), ours_rows, tokenizer, data_collator=collate)
    before = {name: value.clone() for name, value in ours.model.state_dict().items()}
    assert ours.evaluate(ours_rows)["eval_loss"] == stock.evaluate(stock_rows)["eval_loss"]
    stock.train()
    ours.train()
    assert len(losses(ours)) == 3
    assert losses(ours) == losses(stock)
    stocks = stock.model.state_dict()
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, stocks[name]), name
    assert any(not torch.equal(value, before[name]) for name, value in stocks.items())


@pytest.mark.parametrize("normaliser", ["weights", "tokens"])
def test_the_weighted_loss_is_the_sum_by_hand(tmp_path: Path, tokenizer: Any, normaliser: str) -> None:
    """Over two micro-batches of an optimiser step, also in training, and over one batch in evaluation."""
    import torch

    both = ("construction", "refinement")
    rows = [example(n, config) for n, config in zip((0, 40, 7, 3), both * 2, strict=True)]
    data = sft.tokenise(iter([rows]), tokenizer, sft.WEIGHTS)
    collate = collator(tokenizer, sft.WEIGHTS)
    made = trainer(tmp_path, sft.trainer_class(normaliser), data, tokenizer, data_collator=collate)
    model = made.model.eval()
    weigh = {0: 0.0, 1: 1.0, 2: 2.0, 3: 4.0}

    def by_hand(chosen: list[int]) -> tuple[float, float, dict[int, list[float]]]:
        total, divisor, by_kind = 0.0, 0.0, dict[int, list[float]]()
        for at in chosen:
            ids, kinds = data[at]["input_ids"], data[at]["kinds"]
            with torch.no_grad():
                scores = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            for t in range(1, len(ids)):
                loss = -scores[t - 1, ids[t]].item()
                total += weigh[kinds[t]] * loss
                divisor += weigh[kinds[t]] if normaliser == "weights" else float(kinds[t] > 0)
                by_kind.setdefault(kinds[t], []).append(loss)
        return total, divisor, by_kind

    batches = [collate([data[at] for at in chosen]) for chosen in ([0, 1], [2, 3])]
    items = made._get_num_items_in_batch(batches, torch.device("cpu"))
    total, divisor, by_kind = by_hand([0, 1, 2, 3])
    assert set(by_kind) == {0, 1, 2, 3}
    assert items.item() == divisor
    with torch.no_grad():
        loss = sum(made.compute_loss(model, dict(batch), num_items_in_batch=items).item() for batch in batches)
    assert loss == pytest.approx(total / divisor, rel=1e-5)
    step = total / divisor

    made._metrics["eval"].clear()
    total, divisor, by_kind = by_hand([0, 1])
    found = made.evaluate(data.select([0, 1]))
    assert found["eval_loss"] == pytest.approx(total / divisor, rel=1e-5)
    for number, kind in enumerate(sft.KINDS, 1):
        mean = sum(by_kind[number]) / len(by_kind[number])
        assert made.state.log_history[-1][f"eval_loss_{kind}"] == pytest.approx(mean, rel=1e-4)
    made.train()
    assert losses(made)[0] == pytest.approx(step, rel=1e-4)


def test_a_token_over_a_border_weighs_least_and_the_prompt_nothing(tokenizer: Any) -> None:
    kinds = dict(zip(sft.KINDS, (1, 2, 3), strict=True))
    spans = [
        {"start": start, "end": end, "kind": kind}
        for start, end, kind in ((0, 3, "explanation"), (3, 6, "structure"), (6, 9, "decision"), (9, 10, "structure"))
    ]
    offsets = [(0, 2), (2, 4), (4, 6), (5, 7), (7, 8), (8, 10)]
    told = ["explanation", "explanation", "structure", "structure", "decision", "structure"]
    assert sft.token_kinds(offsets, spans, sft.WEIGHTS) == [kinds[kind] for kind in told]
    # Where decisions weigh least, they win the border.
    told[3] = told[5] = "decision"
    assert sft.token_kinds(offsets, spans, [3.0, 2.0, 1.0]) == [
        kinds[kind] for kind in ["explanation", "structure", *told[2:]]
    ]
    # A space that an offset leaves out belongs to the token after it, pieces of one character to all of it.
    assert sft.token_kinds([(0, 3), (7, 8), (8, 9), (8, 9), (9, 10)], spans, sft.WEIGHTS) == [1, 2, 3, 3, 2]


@pytest.mark.parametrize("mode", sft.CONFIGS)
def test_a_row_is_the_prompt_the_completion_and_the_end(tokenizer: Any, mode: str) -> None:
    row = example(1, mode)
    data = sft.tokenise(iter([[row]]), tokenizer, sft.WEIGHTS)[0]
    prompt = "### system\nYou write scripts.\n### user\nextent 1\n"
    if mode == "refinement":
        prompt += f"### assistant\n{row['completion'][:40]}<|end|>\n### user\nmake it faster\n"
    prompt += "### assistant\n"
    assert tokenizer.decode(data["input_ids"]) == f"{prompt}{row['completion']}<|end|>"
    learnt = [(i, k) for i, k in zip(data["input_ids"], data["kinds"], strict=True) if k]
    assert tokenizer.decode([i for i, _ in learnt]) == row["completion"] + "<|end|>"
    assert learnt[-1] == (tokenizer.eos_token_id, 2)
    assert tokenizer.decode([i for i, k in learnt if k == 3]) == "3,4"
    batch = sft.collate([data, {"input_ids": data["input_ids"][:9], "kinds": data["kinds"][:9]}], 1, sft.WEIGHTS)
    assert batch["loss_weights"][0].tolist() == [[0.0, 1.0, 2.0, 4.0][k] for k in data["kinds"]]
    assert batch["labels"][0].tolist() == [
        i if k else -100 for i, k in zip(data["input_ids"], data["kinds"], strict=True)
    ]
    assert batch["labels"][1].tolist() == [-100] * len(data["kinds"])
    assert batch["attention_mask"].sum(1).tolist() == [len(data["kinds"]), 9]


def test_an_epoch_has_the_share_and_every_row() -> None:
    for share in (0.5, 0.2, 0.9):
        chosen = sft.mix(10, 70, share, seed=5)
        construction = [at for at in chosen if at < 10]
        assert len(construction) / len(chosen) == pytest.approx(share, abs=0.01)
        assert set(chosen) == set(range(80))
        counts = [construction.count(at) for at in range(10)]
        assert max(counts) - min(counts) <= 1
        assert chosen == sft.mix(10, 70, share, seed=5) != sft.mix(10, 70, share, seed=6)
    assert sorted(sft.mix(10, 70, 0.0, 1)) == [*range(10, 80)]
    assert sorted(sft.mix(10, 70, 1.0, 1)) == [*range(10)]


def refused(capsys: pytest.CaptureFixture[str], *options: object) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        sft.main([str(option) for option in options])
    said = capsys.readouterr().err or str(stopped.value.code)
    assert stopped.value.code not in (0, None)
    return said


def test_what_is_wrong_is_said_in_one_line(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--data", release, "--out", out, "--init", "tiny")
    said = refused(capsys, *options, "--max-length", 90)
    assert re.fullmatch(r"error: [1-6] of 8 train rows are longer than 90 tokens, up to \d+ \(x-r\d[^:]*\): .*", said)
    assert "--model, --init" in refused(capsys, *options, "--model", "x")
    assert "share" in refused(capsys, *options, "--construction-share", 1.5)
    assert "--batch" in refused(capsys, *options, "--batch", 3, "--micro-batch", 2)
    assert "[0, 0] training rows" in refused(capsys, "--data", tmp_path, "--out", out, "--init", "tiny")
    missing = refused(capsys, "--data", release, "--out", out, "--model", tmp_path / "nowhere")
    assert missing.startswith("error: --model") and "\n" not in missing
    broken = example(0, "construction")
    broken["spans"][1]["end"] -= 1
    write(release, {"construction/train-00000-of-00001.parquet": [broken]})
    assert refused(capsys, *options).endswith("x-c0 lacks text, is too long, or its spans do not tile its completion")
    (release / "construction" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    assert refused(capsys, *options).startswith(f"error: {release}/construction/train-0")
    assert not out.exists()


FOREIGN: dict[str, Any] = {
    "no messages": {"messages": []},
    "messages of texts": {"messages": ["x"]},
    "a message without content": {"messages": [{"role": "user", "content": None}]},
    "a number for an id": {"example_id": 1},
    "no id": {"example_id": None},
    "a number for a completion": {"completion": 1},
    "bytes": {"completion": b"x", "spans": [{"start": 0, "end": 1, "kind": "decision"}]},
    "no spans": {"spans": None},
    "a span of another kind": {"completion": "x", "spans": [{"start": 0, "end": 1, "kind": "x\ny"}]},
    "a span beyond the end": {"completion": "x", "spans": [{"start": 0, "end": 2, "kind": "decision"}]},
    "too much": {"completion": "x" * 9_000_000, "spans": [{"start": 0, "end": 9_000_000, "kind": "decision"}]},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_rows_that_no_release_holds_are_refused_in_one_line(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"construction/train-00000-of-00001.parquet": [example(0, "construction") | FOREIGN[name]]})
    with pytest.raises(SystemExit, match=r"^error: .*train-00000-of-00001.parquet: ") as stopped:
        list(sft.read(tmp_path, "construction", "train"))
    assert "\n" not in str(stopped.value.code)
    assert len(str(stopped.value.code)) < 1000


def test_a_tokenizer_that_does_not_fit_is_refused(
    release: Path, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    import copy

    tiny_model(tokenizer).save_pretrained(tmp_path / "base")
    for change in ("eos_token", "added"):
        other = copy.deepcopy(tokenizer)
        if change == "added":
            other.add_tokens(["one more"])
        else:
            other.eos_token = None
        other.save_pretrained(tmp_path / "base")
        said = refused(capsys, "--data", release, "--out", tmp_path / "out", "--model", tmp_path / "base")
        assert "no end of sequence, or more tokens than the model" in said
    assert not (tmp_path / "out").exists()


def test_what_ends_a_run_through_dragon_is_one_line(
    release: Path, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder belongs to one run at a time; what the script does not foresee is no traceback."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    before = signal.getsignal(signal.SIGTERM)
    out, base = tmp_path / "out", tmp_path / "base"
    tiny_model(tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    asked = ["sft", "--data", str(release), "--model", str(base), "--max-steps", "1"]
    try:
        held = trainers._alone(str(out))
        assert held is not None
        for given in (["--out", str(out)], [f"--out={out}"], ["--ou", f"{tmp_path}/./out"]):
            with pytest.raises(SystemExit, match=r"^error: .*another run writes to it"):
                trainers.main([*asked, *given])
        held.close()
        for value, words in (("logging_steps=x", "JSONDecodeError: .* in 'x'"), ("nothing=1", "'nothing'")):
            with pytest.raises(SystemExit, match=rf"^error: .*{words}") as stopped:
                trainers.main([*asked, "--out", str(out), "--set", value])
            assert "\n" not in str(stopped.value.code)
        with pytest.raises(SystemExit, match="choose sft or grpo"):
            trainers.main(["dpo"])
        assert trainers._alone(None) is None
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
    release: Path, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of step 2 is what a run that died after it leaves."""
    import shutil

    from safetensors.torch import load_file

    out, base = tmp_path / "out", tmp_path / "base"
    tiny_model(tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    options = ["--data", str(release), "--out", str(out), "--model", str(base), "--max-steps", "4", "--batch", "2"]
    options += ["--save-steps", "2", "--construction-share", "0.5", "--set", "logging_steps=1"]
    sft.main(options)
    whole = load_file(out / "model.safetensors")
    assert "holds checkpoint-4" in refused(capsys, *options)
    shutil.rmtree(out / "checkpoint-4")
    (out / "checkpoint-3").mkdir()  # died while writing, and again on a full disk
    (out / "checkpoint-5").mkdir()
    state = (out / "checkpoint-2" / "trainer_state.json").read_text()
    (out / "checkpoint-5" / "trainer_state.json").write_text(state[: state.index("}") + 1])
    (out / "model.safetensors").unlink()
    assert "another seed, rows:" in refused(capsys, *options, "--resume", "--seed", "1")
    halfway = load_file(out / "checkpoint-2" / "model.safetensors")
    sft.main([*options, "--resume"])
    again = load_file(out / "model.safetensors")
    assert set(again) == set(whole)
    assert all(again[name].equal(whole[name]) for name in whole)
    assert any(not again[name].equal(halfway[name]) for name in whole)
    entries = json.loads((out / "trainer_state.json").read_text())["log_history"]
    trained = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in trained] == [1, 2, 3, 4]
    assert all({f"loss_{kind}" for kind in sft.KINDS} <= set(entry) for entry in trained)
    assert [entry["step"] for entry in entries if "eval_loss_decision" in entry] == [2, 4]


def test_the_command_line_trains_lora_adapters_on_a_local_model(
    release: Path, tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model with a template of its own, and rows that are left out."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = tmp_path / "base"
    tiny_model(tokenizer).save_pretrained(base)
    tokenizer.save_pretrained(base)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>\n{% endfor %}"
    (base / "chat_template.jinja").write_text(template + "{% if add_generation_prompt %}<assistant>{% endif %}")
    long = example(8, "construction")
    long["messages"][1]["content"] = "very long " * 400
    write(release, {"construction/train-00001-of-00002.parquet": [long]})
    out = tmp_path / "out"
    options = ["--data", str(release), "--out", str(out), "--model", str(base), "--lora", "4", "--max-steps", "2"]
    sft.main([*options, "--max-length", "400", "--leave-out-long", "--learning-rate", "0.01", "--batch", "1"])
    said = capsys.readouterr().out
    assert "left out: 1 of 9 train rows are longer than 400 tokens" in said
    assert "[2, 6] rows" in said
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), out)
    grown = [value for name, value in model.named_parameters() if "lora_B" in name]
    assert grown and any(value.abs().sum() > 0 for value in grown)
    kept = AutoTokenizer.from_pretrained(out)
    row = sft.tokenise(iter([[example(0, "construction")]]), kept, sft.WEIGHTS)[0]
    assert kept.decode(row["input_ids"]).startswith(
        "<system>You write scripts.<|end|>\n<user>extent 0<|end|>\n<assistant><graph"
    )
    assert row["input_ids"][-1] == tokenizer.eos_token_id


@pytest.mark.slow
def test_two_processes_train_as_one(release: Path, tokenizer: Any, tmp_path: Path) -> None:
    """Their gradients are summed over the weights of both, so the same rows give the same model."""
    from safetensors.torch import load_file

    model = tmp_path / "model"
    tiny_model(tokenizer).save_pretrained(model)
    tokenizer.save_pretrained(model)
    launch = [str(Path(sys.executable).with_name("accelerate")), "launch", "--cpu", "--num_machines", "1"]
    for count in (1, 2):
        more = ["--num_processes", str(count), "--mixed_precision", "no", "--dynamo_backend", "no"]
        script = [sft.__file__, "--data", release, "--model", model, "--out", tmp_path / str(count)]
        training = ["--max-steps", "3", "--batch", "4", "--learning-rate", "0.01", "--eval-rows", "0"]
        subprocess.run([*launch, *more, *map(str, script), *training], check=True, timeout=300)
    one, two = (load_file(tmp_path / count / "model.safetensors") for count in ("1", "2"))
    for name, value in one.items():
        assert (value - two[name]).abs().max() < 1e-6, name
    assert (one["model.norm.weight"] != 1).any()


@pytest.mark.slow
def test_tiny_trains_and_is_loaded_again_through_dragon(release: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "out"
    command = [sys.executable, "-m", "littledragon.pipelines.cli", "train", "sft", "--data", release, "--out", out]
    command += ["--init", "tiny", "--max-steps", "10", "--batch", "2", "--eval-rows", "0", "--set", "logging_steps=1"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    entries = [e for e in json.loads((out / "trainer_state.json").read_text())["log_history"] if "loss" in e]
    assert entries[-1]["loss"] < entries[0]["loss"] - 1
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    text = "é 12 ≤ 3\n\n  <graph>\t"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert model.num_parameters() > 3_000_000


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)  # as Python marks a module that cannot be imported
    assert cli.call(["train", "sft", "--data", "x"]) == 2
    assert capsys.readouterr().err == "error: training needs trl: pip install 'littledragon[train]'\n"


def test_the_file_stands_alone() -> None:
    """It is short, says what it needs as the extra `train` does, and needs nothing of this project."""
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    header = re.match(r"# /// script\n((?:#.*\n)+?)# ///\n", text)
    assert header
    needs = tomllib.loads("".join(line[2:] for line in header[1].splitlines(keepends=True)))["dependencies"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert needs == project["optional-dependencies"]["train"]
    assert "import littledragon" not in text and "from littledragon" not in text


def test_the_preset_says_what_the_paper_gives(capsys: pytest.CaptureFixture[str]) -> None:
    args = sft.options(["--data", "d", "--out", "o", "--preset", "paper", "--model", "here", "--batch", "32"])
    assert (args.model, args.batch, args.weights, args.max_length) == ("here", 32, [1.0, 2.0, 4.0], 32768)
    said = capsys.readouterr().out
    assert "model = here (given)" in said
    assert "weights = [1.0, 2.0, 4.0] (paper)" in said
    assert "epochs = 2.0 (chosen)" in said
