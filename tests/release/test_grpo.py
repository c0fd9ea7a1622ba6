"""Reinforcement learning: what moves a policy and what must not, which prompts it is given, and that runs resume."""

import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from littledragon.compiler import targets
from littledragon.release import dataset
from littledragon.release.trainers import grpo, rollouts, sft
from littledragon.release.trainers.rollouts import Order, Scorer, alike

GOLDEN = Path(__file__).parents[1] / "golden" / "release"
FAST = (GOLDEN / "payload_fast.txt").read_text(encoding="utf-8")
SCRIPT = Path(__file__).resolve().parents[2] / "release" / "trainers" / "grpo.py"
Row = dict[str, Any]
NOTHING: Row = {"stage": "unparsed", "total": 0.0, "r_lat": None}
RIGHT: Row = {"stage": "correct", "total": 1.3, "r_lat": 0.3}
BUILT: Row = {"stage": "built", "total": 0.5, "r_lat": None}
STILL = ("use_cpu=true", "weight_decay=0.1")
FAULT: Row = {"stage": "fault", "total": None, "r_lat": None}


def release(folder: Path, tasks: dict[str, float], modes: tuple[str, ...] = ("construct", "refine")) -> Path:
    """A release folder: a prompt of each mode for each task, which has this noise band, in training and validation."""
    module, specs = ((GOLDEN / f"{name}.json").read_text(encoding="utf-8") for name in ("module", "inputs"))
    numbers = [
        {
            "workload_id": name, "environment_id": "e", "module": module, "inputs": specs, "split": "train",
            "target": json.dumps(targets.target("llvm")), "default_us": 1e4, "anchor_us": 10.0, "noise_band": band,
            "margin": max(0.05, 2 * band),
        }
        for name, band in tasks.items()
    ]  # fmt: skip
    (folder / "tasks").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(numbers, dataset.tasks_schema()), folder / "tasks" / "train.parquet")
    for config, mode in zip(sft.CONFIGS, rollouts.MODES, strict=True):
        rows = [
            {
                "example_id": f"x-{mode}-{name}-{twin}", "mode": mode, "workload_id": name, "environment_id": "e",
                "messages": [{"role": "user", "content": f"{name} {mode}"}], "completion": "good" * (1 + twin),
                "parent_us": 1e3 if mode == "refine" else None,
            }
            for name in tasks for twin in range(2) if mode in modes
        ]  # fmt: skip
        (folder / config).mkdir()
        for split in ("train", "validation") if rows else ():
            pq.write_table(pa.Table.from_pylist(rows), folder / config / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokens are whole texts, one of them a graph."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = [
        "<|pad|>",
        "<|end|>",
        "?",
        "good",
        "bad",
        FAST,
        "###",
        "user",
        "assistant",
        "steady",
        "construct",
        "refine",
    ]
    words += ["moving", "faulty", "fickle", "noisy"]
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "unk_token": "?"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **special)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), max_position_embeddings=64, eos_token_id=1, pad_token_id=0, **shape)
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Judge(ThreadingHTTPServer):
    """What `dragon serve` says, by rules instead of a compiler: of a task and a text, a reward or an HTTP status."""

    daemon_threads = True
    request_queue_size = 128
    rules: dict[str, Callable[[str], Row | int]]
    raw: bytes | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert set(question) == {"task_id", "completion", "mode", "parent_us"}
        if self.server.raw is not None:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(self.server.raw)
            return
        said = self.server.rules[question["task_id"]](question["completion"])
        body = json.dumps({"verdict": {"fault": "the disk is full"}, "reward": said}).encode()
        self.send_response(said if isinstance(said, int) else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def judge() -> Iterator[Judge]:
    server, well = Judge(("127.0.0.1", 0), Handler), iter([NOTHING])  # when asked whether it knows the task
    server.rules = {
        "moving": lambda text: RIGHT if text == "good" else NOTHING,
        "steady": lambda _: BUILT,
        "faulty": lambda text: next(well, FAULT if text == "good" else 500),
    }
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def train(model: Path, data: Path, out: Path, *more: str, judge: Judge | None = None, steps: int = 3) -> Path:
    """Train with answers of one token; in micro-batches, weights decaying, so that nothing stands still by itself."""
    asked = ["--url", judge.url] if judge else ["--device", "simulated"]
    grpo.main(
        [
            "--data", str(data), "--model", str(model), "--out", str(out), *asked, "--max-completion", "1",
            "--prompts", "2", "--generations", "8", "--micro-batch", "8", "--max-steps", str(steps),
            "--learning-rate", "0.01", "--save-steps", "100", *(() if "--set" in more else ("--set", *STILL)),
            *(() if "--eval-prompts" in more else ("--eval-prompts", "0")), *more,
        ]
    )  # fmt: skip
    return out


def parameters(folder: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    a, b = parameters(one), parameters(other)
    return set(a) == set(b) and all((a[name] == b[name]).all().item() for name in a)


def logged(out: Path, name: str) -> list[float]:
    return [line[name] for line in json.loads((out / "trainer_state.json").read_text())["log_history"] if name in line]


def chance(folder: Path, word: str, prompt: str) -> float:
    """How likely a model answers a prompt with this word."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(
        said, chat_template=sft.PLAIN, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(**ids).logits[0, -1]
    return float(logits.softmax(-1)[tokenizer.convert_tokens_to_ids(word)])


def test_a_policy_moves_to_what_is_rewarded_and_the_best_is_kept(model: Path, judge: Judge, tmp_path: Path) -> None:
    data = release(tmp_path / "release", {"moving": 0.01, "steady": 0.01})
    more = ("--eval-prompts", "4", "--save-steps", "4", "--construction-share", "0.5")
    out = train(model, data, tmp_path / "out", *more, judge=judge, steps=12)
    for mode in rollouts.MODES:
        assert chance(out, "good", f"moving {mode}") > 3 * chance(model, "good", f"moving {mode}")
    chosen = json.loads((out / "best" / "chosen.json").read_text())
    judged = dict(zip([0, 4, 8, 12], logged(out, "eval_reward"), strict=True))
    assert chosen["reward"] == pytest.approx(max(judged.values()))
    assert judged[chosen["step"]] == max(judged.values())
    assert same(out / "best", out if chosen["step"] == 12 else out / f"checkpoint-{chosen['step']}")
    assert {float(n) for n in logged(out, "groups/left_out")} >= {1.0}
    for part in (
        "stage/correct",
        "stage/built",
        "r_lat",
        "utility",
        "faults",
        "waiting_share",
        "waiting_s",
        "reward_refinement",
    ):
        assert logged(out, part), part


def test_a_group_without_variance_leaves_all_bits_as_they_are(model: Path, judge: Judge, tmp_path: Path) -> None:
    import torch

    data, out = release(tmp_path / "release", {"fickle": 0.01}), tmp_path / "out"
    first = out / "checkpoint-1"
    turned = first / "order.json"  # from then on it is steady; the optimiser has its momentum
    judge.rules["fickle"] = lambda text: RIGHT if text == "good" or turned.exists() else NOTHING
    train(model, data, out, "--save-steps", "1", "--set", *STILL, "save_total_limit=3", judge=judge, steps=3)
    assert not same(model, first)
    assert same(first, out)
    assert logged(out, "groups/steps_without") == [0, 1, 1]
    assert logged(out, "groups/left_out")[1:] == [2, 2]
    one, other = (torch.load(out / f"checkpoint-{n}" / "optimizer.pt")["state"] for n in (2, 3))
    assert one
    assert all(torch.equal(one[p][name], other[p][name]) for p in one for name in one[p])


def test_a_fault_is_no_reward_and_moves_nothing(
    model: Path, judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = release(tmp_path / "release", {"faulty": 0.01})
    out = train(model, data, tmp_path / "out", "--eval-prompts", "2", judge=judge)
    assert same(model, out)
    assert logged(out, "faults") == [16, 16, 16]
    assert logged(out, "reward") == [None] * 3  # and not 0
    assert not (out / "best").exists()
    assert "HTTP 500" in capsys.readouterr().err
    rubbish = [{"total": total} for total in (float("nan"), 1e300, -1.0, True, "1", [1])]
    for said in (
        {},
        NOTHING | {"stage": "won"},
        RIGHT | {"r_lat": 1e300},
        FAULT,
        *(RIGHT | wrong for wrong in rubbish),
    ):
        assert Scorer(lambda *_, said=said: said, [{}], 1).known((0, "x"))["total"] is None


def test_training_ends_where_nothing_is_judged_any_more(model: Path, judge: Judge, tmp_path: Path) -> None:
    data = release(tmp_path / "release", {"faulty": 0.01})
    with pytest.raises(
        SystemExit, match=r"^error: no verdict at all, 10 times in a row; at last: .*: give --resume"
    ) as end:
        train(model, data, tmp_path / "out", "--save-steps", "4", judge=judge, steps=12)
    assert "\n" not in str(end.value.code)
    assert rollouts.last_of(tmp_path / "out", True) == tmp_path / "out" / "checkpoint-8"


def test_a_server_that_answers_rubbish_gives_faults(judge: Judge, tmp_path: Path) -> None:
    """Without an end, of another release, of another kind."""
    rows, _ = rollouts.read(release(tmp_path, {"moving": 0.01}), "train")
    with rollouts.judge(rows, url=judge.url) as ask:
        for body, words in (
            (b"[" * rollouts.MOST_ANSWER * 2, "without an end"),
            (b"<html>", "JSONDecodeError"),
            (b"[]", "AttributeError"),
            (b'{"reward": {}, "verdict": 1}', "TypeError"),
            (json.dumps({"task": {"default_us": 1.0}, "reward": RIGHT, "verdict": {"fault": None}}), "other latencies"),
        ):
            judge.raw = body if isinstance(body, bytes) else body.encode()
            found = Scorer(ask, rows, 1).known((0, "x"))
            assert (found["total"], found["stage"]) == (None, "fault")
            assert words in found["why"]
        mine = {name: rows[0][name] for name in rollouts.TASK}
        judge.raw = json.dumps({"task": mine, "reward": RIGHT, "verdict": {"fault": None}}).encode()
        assert Scorer(ask, rows, 1).known((0, "x"))["total"] == 1.3
    with rollouts.judge(rows, url=judge.url, timeout=0) as ask:
        judge.raw = b"[" * 1000
        assert Scorer(ask, rows, 1).known((0, "x"))["total"] is None


def test_an_interrupt_does_not_wait_for_who_judges(tmp_path: Path) -> None:
    script = """
import sys, threading
sys.modules["littledragon"] = None
sys.path.insert(0, sys.argv[1])
import rollouts
def ask(row, text):
    print("asked", flush=True)
    threading.Event().wait(600)
rollouts.Scorer(ask, [{"workload_id": str(n)} for n in range(9)], 4).check()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(SCRIPT.parent)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(60) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-1" / "order.json"
    path.parent.mkdir()
    rollouts.write(path, {"batches": 1})
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, usual[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            rollouts.write(path, {"batches": "2" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert json.loads(path.read_text()) == {"batches": 1}


def test_the_best_of_a_run_that_was_killed_stays_the_best(model: Path, judge: Judge, tmp_path: Path) -> None:
    """Killed after the last best went, and before the next one took its name."""
    data, more = release(tmp_path / "release", {"moving": 0.01}), ("--eval-prompts", "2", "--save-steps", "1")
    out = train(model, data, tmp_path / "out", *more, judge=judge, steps=2)
    shutil.rmtree(out / "checkpoint-2")
    (out / "best").rename(out / "new")
    rollouts.write(out / "new" / "chosen.json", {"step": 1, "reward": 1.29})
    train(model, data, out, *more, "--resume", judge=judge, steps=2)
    assert json.loads((out / "best" / "chosen.json").read_text()) == {"step": 1, "reward": 1.29}
    assert not (out / "new").exists()


def test_another_trainers_folder_and_another_models_tokenizer(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rollouts.write(tmp_path / "sft.json", {})
    with pytest.raises(SystemExit, match="holds a supervised run"):
        rollouts.last_of(tmp_path, True)
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), AutoModelForCausalLM.from_pretrained(model)
    rollouts.fits("m", tokenizer, loaded)
    tokenizer.add_tokens(["one more"])
    with pytest.raises(SystemExit, match="more tokens than the model, 16"):
        rollouts.fits("m", tokenizer, loaded)


@pytest.mark.parametrize(
    "change",
    [{"workload_id": None}, {"example_id": 1}, {"messages": []}, {"messages": [{"role": "user", "content": None}]}],
)
def test_prompts_that_no_release_holds_are_refused(tmp_path: Path, change: Row) -> None:
    data = release(tmp_path, {"moving": 0.01}, modes=("construct",))
    path = data / "construction" / "train-00000-of-00001.parquet"
    rows = [row | change for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(SystemExit, match=r"^error: .*ValueError: .* lacks text") as stopped:
        rollouts.read(data, "train")
    assert "\n" not in str(stopped.value.code)


def test_a_group_that_is_left_out_is_as_if_it_were_not_there(model: Path, tmp_path: Path) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    class Given(Scorer):
        def __call__(self, *_: Any, **__: Any) -> list[float | None]:
            self.outcomes = [None] * len(given)
            return given

    grads = []
    drawn: list[list[list[float | None]]] = [[[1, 0], [0.5, 0.5]], [[1, 0], [None, 0.3]], [[1, 0]]]
    for groups in drawn:
        given: list[float | None] = [value for group in groups for value in group]
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.chat_template = sft.PLAIN
        rows = [{"prompt": [{"role": "user", "content": "moving"}], "row": at} for at in range(len(groups))]
        config = GRPOConfig(
            output_dir=str(tmp_path), loss_type="dr_grpo", scale_rewards="none", beta=0.0, use_cpu=True,
            num_generations=2, per_device_train_batch_size=len(given), max_completion_length=1, report_to="none",
            max_steps=1, gradient_checkpointing=False, temperature=1e-3,
        )  # fmt: skip
        trainer = grpo.staged(
            Given(lambda *_: NOTHING, [], 1), model=AutoModelForCausalLM.from_pretrained(model), args=config,
            processing_class=tokenizer, train_dataset=Dataset.from_list(rows),
        )  # fmt: skip
        trainer.order = Order([range(len(rows)), ()], prompts=1, generations=2, patience=1, rest=1, seed=0)
        trainer.order.draw()
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        batch = trainer._generate_and_score_completions([row for row in rows for _ in range(2)])
        trainer._compute_loss(trainer.model, batch).backward()
        grads.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]))
    assert grads[0].abs().max() > 0
    assert torch.allclose(grads[0], grads[2])
    assert torch.allclose(grads[1], grads[2])


def test_prompts_too_noisy_for_a_reward_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """log(1 + band) / log(1000) is more than 0.5 for a band of 35, and less for one of 30."""
    rows, longest = rollouts.read(release(tmp_path, {"moving": 0.01, "noisy": 35.0}), "train")
    assert {row["workload_id"] for row in rows} == {"moving"}
    assert [row["mode"] for row in rows] == ["construct", "refine"]  # twins with the same prompt are one
    assert longest == "goodgood"
    assert "4 of 8 rows left out" in capsys.readouterr().out


def test_screening_drops_prompts_whose_outcomes_do_not_vary(model: Path, judge: Judge, tmp_path: Path) -> None:
    data = release(tmp_path / "release", {"moving": 0.01, "steady": 0.01, "faulty": 0.01})
    out = train(model, data, tmp_path / "out", "--screen", "64", judge=judge, steps=1)
    rows, _ = rollouts.read(data, "train")
    kept = [rows[at]["workload_id"] for at in json.loads((out / "screened.json").read_text())]
    assert sorted(kept) == ["faulty", "faulty", "moving", "moving"]  # of a fault nothing is known
    with pytest.raises(SystemExit, match="too few"):
        train(model, release(tmp_path / "dull", {"steady": 0.01}), tmp_path / "no", "--screen", "4", judge=judge)


def test_a_resumed_run_is_the_same_run(model: Path, judge: Judge, tmp_path: Path) -> None:
    data, more = release(tmp_path / "release", {"moving": 0.01, "steady": 0.01}), ("--save-steps", "2")
    whole = train(model, data, tmp_path / "whole", *more, judge=judge, steps=4)
    part = tmp_path / "part"
    part.mkdir()
    shutil.copy(whole / "grpo.json", part)
    shutil.copytree(whole / "checkpoint-2", part / "checkpoint-2")
    with pytest.raises(SystemExit, match="give --resume"):
        train(model, data, part, *more, judge=judge, steps=4)
    with pytest.raises(SystemExit, match="made with another max_steps"):
        train(model, data, part, *more, "--resume", judge=judge, steps=5)
    train(model, data, part, *more, "--resume", judge=judge, steps=4)
    assert same(whole, part)
    assert not same(whole, part / "checkpoint-2")
    assert json.loads((part / "checkpoint-4" / "order.json").read_text()) == json.loads(
        (whole / "checkpoint-4" / "order.json").read_text()
    )


def test_a_prompt_that_stays_alike_rests() -> None:
    order = Order([range(2), range(2, 4)], prompts=2, generations=2, patience=2, rest=3, seed=0)
    seen: list[int] = []
    for _ in range(24):
        rows = order.draw()
        seen += rows
        outcomes = [[("correct", 0.0), ("correct", 0.0 if row == 0 else 0.1)] for row in rows]
        order.told([row for row in rows for _ in range(2)], [one for pair in outcomes for one in pair])
    assert seen.count(0) * 2 < min(seen.count(row) for row in (1, 2, 3))
    assert seen.count(0) > 2  # it comes up again
    assert order.resting == 1
    assert max(seen.count(row) for row in (1, 2, 3)) - min(seen.count(row) for row in (1, 2, 3)) <= 1


def test_both_modes_have_their_share() -> None:
    order = Order([range(3), range(3, 9)], share=0.25, prompts=2, generations=2, patience=2, rest=3, seed=0)
    drawn = [row for _ in range(10) for row in order.draw()]
    assert sum(row < 3 for row in drawn) == 5
    with_all = Order([range(3), range(3, 9)], prompts=3, generations=2, patience=2, rest=3, seed=0)
    assert sorted(row for _ in range(3) for row in with_all.draw()) == list(range(9))


def test_outcomes_are_what_was_verified() -> None:
    assert alike([("parsed", None), ("parsed", None), None]) is True
    assert alike([("correct", 0.1), ("correct", 0.2)]) is False
    assert alike([("correct", 0.1), None]) is None


def test_all_completions_are_judged_at_once_and_equal_ones_once() -> None:
    gate, asked = threading.Barrier(8, timeout=20), list[str]()

    def ask(row: Row, text: str) -> Row:
        asked.append(text)
        gate.wait()
        return BUILT

    scorer, said = Scorer(ask, [{"mode": "construct"}], 8), dict[str, float]()
    texts = [[{"role": "assistant", "content": str(n % 8)}] for n in range(16)]
    assert scorer(texts, [0] * 16, said.__setitem__) == [0.5] * 16
    assert sorted(asked) == [str(n) for n in range(8)]
    assert (said["stage/built"], said["faults"]) == (1.0, 0)
    assert 0 < said["waiting_share"] <= 1


def test_a_busy_server_is_asked_again_and_an_unknown_task_ends_it(judge: Judge, tmp_path: Path) -> None:
    rows, _ = rollouts.read(release(tmp_path, {"moving": 0.01, "noisy": 0.01}), "train")
    busy = iter([503, 200])
    judge.rules["moving"] = lambda _: RIGHT if (status := next(busy)) == 200 else status
    with rollouts.judge(rows, url=judge.url + "/") as ask:
        assert ask(rows[0], "good")["total"] == 1.3
        judge.rules["moving"], judge.rules["noisy"] = (lambda _: NOTHING), (lambda _: 404)
        with pytest.raises(SystemExit, match="no verdict for task noisy: RuntimeError: HTTP 404"):
            Scorer(ask, rows, 4).check()


@pytest.mark.slow
def test_a_graph_is_learnt_from_the_service_itself(model: Path, tmp_path: Path) -> None:
    data = release(tmp_path / "release", {"moving": 0.01}, modes=("construct",))
    out = train(model, data, tmp_path / "out", steps=5)
    assert chance(out, FAST, "moving construct") > 2 * chance(model, FAST, "moving construct")
    assert max(logged(out, "stage/correct")) > 0
    assert set(logged(out, "faults")) == {0}


def test_the_script_runs_alone(tmp_path: Path) -> None:
    for name in ("grpo", "rollouts", "reward", "sft"):
        shutil.copy(SCRIPT.with_name(f"{name}.py"), tmp_path)
    hidden = (
        "import sys; sys.modules['littledragon'] = None; sys.path.insert(0, '.'); import grpo; grpo.options(['-h'])"
    )
    done = subprocess.run([sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "--construction-share" in done.stdout) == (0, True), done.stderr
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# /// script"
    assert len(lines) < 300
