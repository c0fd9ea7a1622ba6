# /// script
# requires-python = ">=3.11"
# dependencies = ["accelerate", "datasets", "peft", "tokenizers", "torch==2.13.0", "transformers", "trl==1.16.*"]
# ///
"""Supervised fine-tuning on a published dataset folder, with tokens weighted by the spans that they lie in.

    python release/trainers/sft.py --data RELEASE --model NAME_OR_PATH --out DIR
    python release/trainers/sft.py --data RELEASE --init tiny --out DIR --max-steps 100
    accelerate launch release/trainers/sft.py --data RELEASE --preset paper --out DIR

The loss is -sum(w_t log p(y_t | x, y_<t)) / sum(w_t) over an optimiser step. w is 1 in explanation spans, 2 in
structure spans and for the end of sequence, 4 in decision spans; a token that crosses a border has the least weight
of its characters; the prompt has none. With weights of 1 the losses are those of TRL's SFTTrainer.
A prompt is the model's chat template over `messages` with its generation prompt; the completion and the template's
end of turn follow, each tokenised by itself. Models without a template get `PLAIN`, which is saved with them. Nothing
is downloaded when the model is a path or made here. This file needs nothing else of the project.
"""

import argparse
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

Row = dict[str, Any]
CONFIGS, KINDS = ("construction", "refinement"), ("explanation", "structure", "decision")
COLUMNS, TEXTS, MOST = ["example_id", "messages", "completion", "spans"], ("role", "content"), 1 << 23
WEIGHTS: Final = [1.0, 2.0, 4.0]
# The chat template of models that have none: a heading for each role, then what it says; answers end in the EOS.
PLAIN: Final = (
    "{{ bos_token }}{% for message in messages %}{{ '### ' + message.role + '\\n' + message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '### assistant\\n' }}{% endif %}"
)
# Of --init: vocabulary, width, layers, heads, width of the MLP; 5.5 and 30 million parameters with all its tokens.
SIZES: Final = {"tiny": (4096, 320, 3, 5, 1024), "small": (8192, 512, 8, 8, 1408)}
RATES: Final = {"tiny": 1e-3, "small": 1e-3, "lora": 2e-4, "full": 1e-5}
# Of --preset paper: it names the model and the weights, and trains both configurations in one run.
PAPER: Final[Row] = {"model": "ByteDance-Seed/Seed-Coder-8B-Instruct", "weights": WEIGHTS}
CHOSEN: Final[Row] = {"construction_share": 0.5, "normaliser": "weights", "lora": 0, "max_length": 32768,
                      "batch": 64, "epochs": 2.0, "learning_rate": 1e-5}  # fmt: skip


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; what the preset sets, an option overrides."""
    parser = argparse.ArgumentParser(description="SFT with weighted tokens on a published dataset folder.")
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the release folder")
    add("--out", type=Path, required=True, help="where checkpoints and the trained model go")
    add("--model", help="any causal language model, by name or path")
    add("--init", choices=SIZES, help="make tokenizer and model here, from nothing but the training split")
    add("--preset", choices=["paper"], help="the paper's model and settings; each is printed as paper or chosen")
    add("--construction-share", type=float, help="share of construction rows, 0 to 1; left out: all rows once")
    add("--weights", type=float, nargs=3, default=WEIGHTS, metavar=("E", "S", "D"), help="of " + ", ".join(KINDS))
    add("--normaliser", choices=["weights", "tokens"], default="weights", help="what the weighted sum is divided by")
    add("--max-length", type=int, help="tokens of a row at most; the model's context if not given")
    add("--leave-out-long", action="store_true", help="leave longer rows out and count them; rows are never cut")
    add("--lora", type=int, default=0, metavar="R", help="train LoRA adapters of this rank, not all parameters")
    add("--learning-rate", type=float, help=", ".join(f"{key} {rate:g}" for key, rate in RATES.items()))
    add("--epochs", type=float, default=1.0)
    add("--max-steps", type=int, default=-1, help="optimiser steps, in place of --epochs")
    add("--batch", type=int, default=8, help="rows of an optimiser step, over all processes")
    add("--micro-batch", type=int, default=1, help="rows at once on one device")
    add("--seed", type=int, default=0)
    add("--save-steps", type=int, default=200, help="steps between checkpoints, of which the last two are kept")
    add("--eval-rows", type=int, default=64, help="validation rows to evaluate at each checkpoint; 0 for none")
    add("--set", nargs="+", default=[], metavar="NAME=JSON", help="other fields of TRL's SFTConfig: warmup_steps=100")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out, if there is one")
    preset = {**PAPER, **CHOSEN} if parser.parse_known_args(argv)[0].preset else {}
    parser.set_defaults(**preset)
    args = parser.parse_args(argv)
    for name, value in preset.items():
        source = "paper" if name in PAPER else "chosen"
        print(f"preset paper: {name} = {getattr(args, name)} ({source if getattr(args, name) == value else 'given'})")
    if bool(args.model) == bool(args.init):
        parser.error("give one of --model, --init and --preset")
    if not 0 <= (args.construction_share or 0) <= 1 or min(args.weights) < 0 or not 0 < sum(args.weights) < 1e9:
        parser.error("--construction-share is from 0 to 1; --weights are not negative, nor all 0")
    if (m := args.micro_batch) < 1 or args.batch < 1 or args.batch % (m * int(os.environ.get("WORLD_SIZE", "1"))):
        parser.error("--batch must be a multiple of --micro-batch times the number of processes")
    return args


def read(data: Path, config: str, split: str, limit: int = sys.maxsize) -> Iterator[list[Row]]:
    """A split's rows in batches; refuses files without such rows, and spans that do not tile the completion."""
    import pyarrow.parquet as pq

    for path in sorted((data / config).glob(f"{split}-*.parquet")):
        try:
            for batch in pq.ParquetFile(path).iter_batches(64, columns=COLUMNS):
                rows, limit = batch.to_pylist()[:limit], max(0, limit - batch.num_rows)
                for row in rows:
                    starts, ends = ([span[side] for span in row["spans"]] for side in ("start", "end"))
                    tiled = [*starts, len(row["completion"])] == [0, *ends] == sorted([0, *ends])
                    said = [row["example_id"], row["completion"], *(m[k] for m in row["messages"] for k in TEXTS)]
                    fine = len(said) > 3 and {type(text) for text in said} == {str} and sum(map(len, said)) <= MOST
                    if not (fine and tiled and {span["kind"] for span in row["spans"]} <= set(KINDS)):
                        raise ValueError(f"{said[0]} lacks text, is too long, or its spans do not tile its completion")
                yield rows
        except Exception as error:  # of pyarrow's kinds some are none of Python's
            sys.exit(f"error: {path}: {' '.join(str(error).split())[:500]}")


def token_kinds(offsets: Sequence[Sequence[int]], spans: Sequence[Row], weights: Sequence[float]) -> list[int]:
    """For each token 1 + the index in `KINDS` of its lightest kind; spaces that a tokenizer omits are the next's."""
    order, at = sorted(range(len(KINDS)), key=lambda kind: weights[kind]), np.array(offsets, np.int64).reshape(-1, 2)
    ranks = b"".join(bytes([order.index(KINDS.index(s["kind"]))]) * int(s["end"] - s["start"]) for s in spans)
    reached = np.maximum.accumulate(np.append(0, at[:, 1]))[:-1]
    first = np.minimum(np.minimum(at[:, 0], reached), len(ranks) - 1)
    borders = np.stack([first, np.maximum(at[:, 1], first + 1)], 1).ravel()
    return [1 + order[rank] for rank in np.minimum.reduceat(np.frombuffer(ranks + b"\xff", np.uint8), borders)[::2]]


def tokenise(batches: Iterator[list[Row]], tokenizer: Any, weights: Sequence[float]) -> Any:
    """A `datasets.Dataset` of example_id, input_ids and kinds (0 in the prompt, else as `token_kinds`)."""
    import pyarrow as pa
    from datasets import Dataset

    ids, end = partial(tokenizer, add_special_tokens=False, verbose=False), 1 + KINDS.index("structure")
    write = partial(tokenizer.apply_chat_template, tokenize=False)
    answered = write([{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}])
    tail = ids(answered.rpartition("ANSWER")[2].strip() or tokenizer.eos_token)["input_ids"]
    schema = pa.schema({"example_id": pa.string(), "input_ids": pa.list_(pa.int32()), "kinds": pa.list_(pa.int8())})
    tables = [schema.empty_table()]
    for rows in filter(None, batches):
        before = ids(write([row["messages"] for row in rows], add_generation_prompt=True))["input_ids"]
        after = ids([row["completion"] for row in rows], return_offsets_mapping=True)
        kinds = [token_kinds(at, row["spans"], weights) for at, row in zip(after["offset_mapping"], rows, strict=True)]
        tokens = [x + y + tail for x, y in zip(before, after["input_ids"], strict=True)]
        kinds = [[0] * len(x) + of_it + [end] * len(tail) for x, of_it in zip(before, kinds, strict=True)]
        tables.append(pa.table([[row["example_id"] for row in rows], tokens, kinds], schema=schema))
    return Dataset(pa.concat_tables(tables))


def load(args: argparse.Namespace, tokenizer: Any, most: int, split: str, rows: int = sys.maxsize) -> list[Any]:
    """The tokenised rows of each configuration; more than `most` tokens are refused, or left out where args say so."""
    parts = [tokenise(read(args.data, c, split, rows), tokenizer, args.weights).with_format("torch") for c in CONFIGS]
    sizes = [(row["example_id"], len(row["input_ids"])) for part in parts for row in part]
    if long := [name for name, size in sizes if size > most]:
        said = f"{len(long)} of {len(sizes)} {split} rows are longer than {most} tokens, up to "
        said += f"{max(n for _, n in sizes)} ({', '.join(long[:20])}{', …' if long[20:] else ''})"
        if not args.leave_out_long:
            sys.exit(f"error: {said}: give a larger --max-length, or --leave-out-long to train without them")
        print(f"left out: {said}")
    return [part.filter(lambda row: len(row["input_ids"]) <= most) if long else part for part in parts]


def mix(construction: int, refinement: int, share: float, seed: int) -> list[int]:
    """Indices into both, one after the other, for an epoch: the scarcer is repeated in shuffled rounds, none is cut."""
    parts = {range(construction): share, range(construction, construction + refinement): 1 - share}
    total, order = max(len(rows) / part for rows, part in parts.items() if part), random.Random(seed)
    chosen: list[int] = []
    for rows, part in parts.items():
        for left in range(round(total * part), 0, -len(rows)):
            chosen += order.sample(rows, min(left, len(rows)))
    return chosen


def collate(rows: list[Row], pad: int, weights: Sequence[float]) -> dict[str, Any]:
    """A batch padded on the right, where no token sees it: labels are -100 and weights 0 in prompt and padding."""
    from torch import as_tensor, ones_like, tensor
    from torch.nn.utils.rnn import pad_sequence

    ids = pad_sequence([as_tensor(row["input_ids"]) for row in rows], True, pad)
    kinds = pad_sequence([as_tensor(row["kinds"]) for row in rows], True, 0)
    there = pad_sequence([ones_like(as_tensor(row["kinds"])) for row in rows], True, 0)
    labels, weighed = ids.masked_fill(kinds == 0, -100), tensor([0.0, *weights])[kinds]
    return {"input_ids": ids, "attention_mask": there, "labels": labels, "loss_weights": weighed, "kinds": kinds}


def trainer_class(normaliser: str) -> Any:
    """TRL's SFTTrainer with weighted tokens. It is imported here, so that wrong options are refused at once."""
    import torch
    from trl import SFTTrainer

    class WeightedSFTTrainer(SFTTrainer):  # type: ignore[misc]
        def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
            tokens = super()._get_num_items_in_batch(batch_samples, device)
            if normaliser == "tokens" or tokens is None:
                return tokens
            total = sum(batch["loss_weights"][:, 1:].sum() for batch in batch_samples).to(device)
            return self.accelerator.gather(total).sum() if self.args.average_tokens_across_devices else total

        def compute_loss(self, model: Any, inputs: Any, *args: Any, num_items_in_batch: Any = None, **more: Any) -> Any:
            weights, kinds = inputs.pop("loss_weights")[:, 1:], inputs.pop("kinds")[:, 1:]
            metrics = self._metrics["train" if self.model.training else "eval"]

            def weighted(**kwargs: Any) -> Any:
                outputs = model(**kwargs | ({} if kwargs.get("output_router_logits") else {"attention_mask": None}))
                for number, kind in enumerate(KINDS, 1):
                    sums = torch.stack([-outputs.log_probs.detach()[kinds == number].sum(), (kinds == number).sum()])
                    total, count = self.accelerator.reduce(sums).tolist()
                    metrics[f"loss_{kind}"] += [total / count] if count else []
                # Without a number of items, as in evaluation, TRL divides by the tokens of the batch.
                alone = num_items_in_batch is None and normaliser == "weights"
                scale = outputs.label_mask.sum() / weights.sum().clamp(min=1) if alone else 1
                outputs.log_probs = outputs.log_probs * (weights * scale)
                return outputs

            return super().compute_loss(weighted, inputs, *args, num_items_in_batch=num_items_in_batch, **more)

    return WeightedSFTTrainer


def from_nothing(size: str, batches: Iterator[list[Row]]) -> tuple[Any, Any]:
    """A byte-level BPE tokenizer of the rows, numbers and identifiers (`ax0`) apart; a Llama-shaped model for it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    special, shape = {"eos_token": "<|end|>", "pad_token": "<|pad|>"}, dict(zip(names, SIZES[size], strict=True))
    bpe, identifier = Tokenizer(models.BPE()), r"(?<!\w)(?:[A-Za-z](?>[^\W_]*)_\w*|(?>[A-Za-z]{2,})\d\w*)"
    pieces = pre_tokenizers.Split(Regex(rf"{identifier}|\d+|(?:(?!{identifier})[^\d\n]){{1,9999}}\n?|\n"), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    bpe.decoder, letters = decoders.ByteLevel(), pre_tokenizers.ByteLevel.alphabet()
    texts = ([*(said["content"] for said in row["messages"]), row["completion"]] for rows in batches for row in rows)
    learner = trainers.BpeTrainer(vocab_size=shape["vocab_size"], show_progress=False, initial_alphabet=letters)
    bpe.train_from_iterator(texts, learner)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **special)
    shape |= {"vocab_size": len(tokenizer), "max_position_embeddings": 32768, "tie_word_embeddings": True}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return tokenizer, LlamaConfig(**shape, **ends)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, from the options to the saved model."""
    args = options(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1" if args.init or Path(args.model).exists() else "0")
    import torch
    from datasets import concatenate_datasets
    from peft import LoraConfig
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig

    done = [p.parent for p in args.out.glob("checkpoint-*/trainer_state.json") if p.read_text().endswith("\n}\n")]
    last = max(done, key=lambda path: int(path.name.split("-")[1]), default=None)  # its state is the last that is saved
    if last and not args.resume:
        sys.exit(f"error: {args.out} holds {last.name}: give --resume to go on from it, or another --out")
    try:
        if start := last if args.init else args.model:
            tokenizer, config = AutoTokenizer.from_pretrained(start), AutoConfig.from_pretrained(start)
        else:
            tokenizer, config = from_nothing(args.init, (b for name in CONFIGS for b in read(args.data, name, "train")))
        if tokenizer.eos_token is None or len(tokenizer) > config.get_text_config().vocab_size:
            raise ValueError("its tokenizer has no end of sequence, or more tokens than the model")
    except (OSError, ValueError) as error:
        sys.exit(f"error: --model {start}: {' '.join(str(error).split())}")
    tokenizer.chat_template = tokenizer.chat_template or PLAIN
    most = args.max_length or getattr(config.get_text_config(), "max_position_embeddings", sys.maxsize)
    parts, share = load(args, tokenizer, most, "train"), args.construction_share
    held = concatenate_datasets(load(args, tokenizer, most, "validation", -(-args.eval_rows // 2)))
    sizes = [len(part) for part in parts]
    if not any(sizes) or (share is not None and not all(sizes)):
        sys.exit(f"error: {args.data}: {' and '.join(CONFIGS)} have {sizes} training rows: too few for this")
    chosen = range(sum(sizes)) if share is None else mix(sizes[0], sizes[1], share, args.seed)
    train = concatenate_datasets(parts).select(chosen)
    kept = {k: v for k, v in vars(args).items() if k not in ("data", "out", "resume", "save_steps", "eval_rows")}
    kept["rows"] = hashlib.sha256(" ".join(train["example_id"]).encode()).hexdigest()
    before = json.loads((args.out / "sft.json").read_text()) if last else kept
    if changed := [name for name in kept if kept[name] != before.get(name)]:
        sys.exit(f"error: {args.out} was made with another {', '.join(changed)}: give the same, or another --out")
    args.out.mkdir(parents=True, exist_ok=True)
    if not last:
        (args.out / "sft.json").write_text(json.dumps(kept, indent=1))
    gpu, _ = torch.cuda.is_available(), torch.manual_seed(args.seed)
    dtype, make = torch.bfloat16 if args.lora and gpu else torch.float32, AutoModelForCausalLM
    model = make.from_config(config) if args.init else make.from_pretrained(args.model, dtype=dtype)
    fields: Row = {
        "output_dir": str(args.out), "lr_scheduler_type": "cosine", "warmup_steps": 0.03, "save_total_limit": 2,
        "learning_rate": args.learning_rate or RATES[args.init or ("lora" if args.lora else "full")], "bf16": gpu,
        "num_train_epochs": args.epochs, "max_steps": args.max_steps, "seed": args.seed, "report_to": "none",
        "gradient_accumulation_steps": args.batch // (args.micro_batch * int(os.environ.get("WORLD_SIZE", "1"))),
        "per_device_train_batch_size": args.micro_batch, "per_device_eval_batch_size": args.micro_batch,
        "eval_strategy": "steps" if len(held) else "no", "save_steps": args.save_steps, "eval_steps": args.save_steps,
        "dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": None, "remove_unused_columns": False,
        "gradient_checkpointing": not args.init, "dataloader_pin_memory": gpu, "disable_tqdm": not sys.stderr.isatty(),
    }  # fmt: skip
    fields |= {name: json.loads(value) for name, _, value in (given.partition("=") for given in args.set)}
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    adapters = LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear") if args.lora else None
    trainer = trainer_class(args.normaliser)(
        model=model, args=SFTConfig(**fields), processing_class=tokenizer, peft_config=adapters, train_dataset=train,
        eval_dataset=held if len(held) else None, data_collator=partial(collate, pad=pad, weights=args.weights),
    )  # fmt: skip
    print(f"{' and '.join(CONFIGS)}: {sizes} rows, {len(train)} an epoch; {model.num_parameters():,} parameters")
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
