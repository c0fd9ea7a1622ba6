# /// script
# requires-python = ">=3.11"
# dependencies = ["accelerate", "datasets", "jinja2", "peft", "torch==2.13.0", "transformers", "trl==1.16.*"]
# ///
"""Reinforcement learning (GRPO) on the prompts of a published dataset folder, with the staged reward of `reward.py`.

    python release/trainers/grpo.py --data RELEASE --model DIR --out DIR --device real
    python release/trainers/grpo.py --data RELEASE --model DIR --out DIR --url http://127.0.0.1:8723
    accelerate launch release/trainers/grpo.py --data RELEASE --model DIR --out DIR --url URL

Completions are judged by a running `dragon serve`, or else by a service that is opened here, for which the toolkit must
be installed; all of a step at once. What that machinery cannot tell is None, which TRL leaves out of a group's mean.
The loss is TRL's `dr_grpo` with unscaled advantages, over the groups whose rewards differ, as if no others had been
drawn; a step that has none leaves parameters and optimiser as they are.
An outcome is what the gates verified, without partial credit: the stage, and what speed adds. --screen N samples N
completions of each prompt first, and keeps the prompts whose outcomes vary; in training, a prompt whose groups are all
alike --patience times in a row rests for --rest rounds of the others. --out/best is the best on validation prompts, by
mean reward. Of the project only the files beside this one are needed.
"""

import argparse
import hashlib
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING or __package__:
    from littledragon.release.trainers.rollouts import MODES, Order, Scorer, alike, fits, judge, last_of, read, write
    from littledragon.release.trainers.sft import PLAIN, Row
else:
    from rollouts import MODES, Order, Scorer, alike, fits, judge, last_of, read, write
    from sft import PLAIN, Row

RATES: Final = {"lora": 1e-5, "full": 1e-6}
ELSEWHERE: Final = ("data", "out", "resume", "save_steps", "device", "url", "threads", "workers", "timeout")


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="GRPO with the staged reward on a published dataset folder.")
    add = parser.add_argument
    add("--data", type=Path, required=True, help="the release folder")
    add("--model", required=True, help="where training starts: any causal language model, by name or path")
    add("--out", type=Path, required=True, help="where checkpoints, the trained model and the best one go")
    add("--url", help="of a running `dragon serve`; without it, completions are judged in this process's children")
    add("--device", choices=["real", "simulated"], default="real", help="without --url: what measures")
    add("--workers", type=int, help="without --url: processes that build; one a core")
    add("--threads", type=int, default=64, help="completions that are judged at once")
    add("--timeout", type=float, default=600.0, help="seconds until an answer of --url counts as a fault")
    add("--environment", help="whose latencies, where the release has several")
    add("--construction-share", type=float, help="share of construction prompts, 0 to 1; left out: all alike")
    add("--screen", type=int, default=0, metavar="N", help="sample N completions of each prompt before; 0 for none")
    add("--patience", type=int, default=3, help="groups in a row that are all alike until a prompt rests")
    add("--rest", type=int, default=4, help="rounds of the other prompts that it rests")
    add("--prompts", type=int, default=8, help="prompts of an optimiser step, over all processes")
    add("--generations", type=int, default=8, help="completions of a prompt: its group")
    add("--micro-batch", type=int, default=1, help="completions at once on one device in the backward pass")
    add("--max-completion", type=int, help="tokens to generate at most; 1.25 times the longest answer if not given")
    add("--max-length", type=int, help="tokens of prompt and completion at most; the model's context if not given")
    add("--leave-out-long", action="store_true", help="leave longer prompts out and count them; none is cut")
    add("--lora", type=int, default=0, metavar="R", help="train LoRA adapters of this rank, not all parameters")
    add("--learning-rate", type=float, help=", ".join(f"{key} {rate:g}" for key, rate in RATES.items()))
    add("--beta", type=float, default=0.0, help="of the KL term; 0 needs no reference model")
    add("--epochs", type=float, default=1.0)
    add("--max-steps", type=int, help="optimiser steps, in place of --epochs")
    add("--save-steps", type=int, default=50, help="steps between checkpoints, each evaluated; the last two are kept")
    add("--eval-prompts", type=int, default=64, help="validation prompts to evaluate at each; 0 for none")
    add("--eval-generations", type=int, default=4, help="completions of each of them")
    add("--seed", type=int, default=0)
    add("--set", nargs="+", default=[], metavar="NAME=JSON", help="other fields of TRL's GRPOConfig: use_vllm=true")
    add("--resume", action="store_true", help="go on from the last checkpoint in --out, if there is one")
    args, world = parser.parse_args(argv), int(os.environ.get("WORLD_SIZE", "1"))
    micro, drawn = args.micro_batch, args.prompts * args.generations
    if min(args.prompts, micro) < 1 or args.generations < 2 or drawn % (micro * world):
        parser.error("--prompts times --generations (2 or more) is a multiple of --micro-batch times the processes")
    if args.screen == 1 or min(args.patience, args.eval_generations, args.threads, args.save_steps) < 1:
        parser.error("--screen needs 2 completions; the other counts are positive")
    if not 0 <= (args.construction_share or 0) <= 1:
        parser.error("--construction-share is from 0 to 1")
    if world > 1 and not args.url:
        parser.error("several processes share one `dragon serve`: give --url")
    return args


def staged(scorer: Scorer, **kwargs: Any) -> Any:
    """A GRPOTrainer without the groups that tell nothing; TRL is imported here, so that wrong options fail at once."""
    import torch
    from accelerate.utils import gather_object
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    class Skip(TrainerCallback):  # type: ignore[misc]
        """A step without a group that tells something is none: AdamW would decay, and go on by its momentum."""

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            told = bool(trainer.accelerator.reduce(trainer.telling).item())
            trainer.telling.zero_()
            trainer._metrics["train"]["groups/steps_without"].append(float(not told))
            for parameter in () if told else trainer.model.parameters():
                parameter.grad = None

    class StagedGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
        order: Any = None  # until training begins

        def __init__(self, **kwargs: Any) -> None:
            self.rewards, self.found = list[Any](), list[tuple[int, Any]]()
            super().__init__(**kwargs)
            self.telling = torch.zeros((), device=self.accelerator.device)

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            """Generate and judge; in training, keep what is better on the validation prompts than all before it."""
            self.rewards.clear()
            metrics, rewards = super().evaluate(*args, **kwargs), torch.cat(self.rewards)
            mean, best, new = rewards.nanmean().item(), *(Path(self.args.output_dir) / name for name in ("best", "new"))
            if self.args.should_save and (new / "chosen.json").exists() and not best.exists():
                new.rename(best)  # of a run that was killed between two lines below
            before = json.loads((best / "chosen.json").read_text())["reward"] if best.exists() else -math.inf
            self.accelerator.wait_for_everyone()
            if self.order and mean > before and rewards.isnan().float().mean() <= 0.5:  # the rest are faults
                self.save_model(str(new))
                if self.args.should_save:
                    write(new / "chosen.json", {"step": self.state.global_step, "reward": mean})
                    shutil.rmtree(best, ignore_errors=True)
                    new.rename(best)
            return metrics

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            self.order.copies = self.args.steps_per_generation * self.num_iterations
            self.order.batches = -(-self.args.max_steps * self.args.gradient_accumulation_steps // self.order.copies)
            return self.order

        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            base = getattr(loader, "base_dataloader", loader)
            base.generator = torch.Generator()  # else each start takes a random number
            return loader

        def _calculate_rewards(self, inputs: Any, *args: Any) -> Any:
            rewards = super()._calculate_rewards(inputs, *args)
            rows = gather_object([row["row"] for row in inputs])
            self.found += zip(rows, gather_object(scorer.outcomes), strict=True)
            self.rewards.append(rewards)
            return rewards

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            if not self.model.training:
                return super()._generate_and_score_completions(inputs)
            self.rewards.clear()
            self.found.clear()
            output = super()._generate_and_score_completions(inputs)
            self.order.told(*zip(*self.found, strict=True))
            groups = self.rewards.pop().view(-1, self.num_generations)
            tells = groups.nan_to_num(-math.inf).amax(1) > groups.nan_to_num(math.inf).amin(1)
            for name, count in (("left_out", (~tells).sum()), ("resting", self.order.resting), ("all", len(tells))):
                self._metrics["train"][f"groups/{name}"].append(float(count))
            mine = tells.repeat_interleave(self.num_generations).split(len(inputs))[self.accelerator.process_index]
            output["completion_mask"] = output["completion_mask"] * mine.unsqueeze(1)
            output["advantages"] = output["advantages"] * mine
            output["scale"] = len(tells) / tells.sum().clamp(min=1)  # the loss is a mean over all completions
            return output

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            if not self.model.training:
                return super()._compute_loss(model, inputs)
            self.telling += inputs["completion_mask"].any()
            return super()._compute_loss(model, inputs) * inputs["scale"]

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            super()._save_checkpoint(model, trial)
            if self.args.should_save:
                last = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
                write(last / "order.json", self.order.state)

        def screen(self, data: Any, completions: int) -> list[int]:
            """The rows of the prompts whose outcomes vary, or are not known, among so many completions of each."""
            usual, self.num_generations_eval = self.args.num_generations_eval, completions
            per = self.args.per_device_eval_batch_size
            self.args.per_device_eval_batch_size = completions * max(1, per // completions)
            self.evaluate(data)
            self.num_generations_eval, self.args.per_device_eval_batch_size = usual, per
            outcomes: dict[int, list[Any]] = {row: [] for row in data["row"]}
            for row, outcome in self.found:
                outcomes[row].append(outcome)
            return [row for row in outcomes if not alike(outcomes[row])]

    trainer = StagedGRPOTrainer(reward_funcs=scorer, callbacks=[Skip()], **kwargs)
    return trainer


def main(argv: Sequence[str] | None = None) -> None:
    """Train, from the options to the saved models."""
    args = options(argv)
    last = last_of(args.out, args.resume)
    rows, longest = read(args.data, "train", args.environment)
    held, _ = read(args.data, "validation", args.environment) if args.eval_prompts else ([], 0)
    held = sorted(held, key=lambda row: hashlib.sha256(row["example_id"].encode()).digest())[: args.eval_prompts]
    if not rows:
        sys.exit(f"error: {args.data}: no prompts to train on")
    where = ("url", "timeout", "data", "device", "environment", "workers")
    with judge([*rows, *held], **{name: getattr(args, name) for name in where}) as ask:
        train(args, last, rows, held, longest, Scorer(ask, [*rows, *held], args.threads))


def train(args: Any, last: Path | None, rows: list[Row], held: list[Row], longest: str, scorer: Scorer) -> None:
    """Train on rows, choosing on those that are held out; `longest` is the longest published answer."""
    scorer.check()
    if Path(args.model).exists():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    gpu, world = torch.cuda.is_available(), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        dtype = torch.bfloat16 if args.lora and gpu else torch.float32
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    except Exception as error:  # safetensors has a kind of its own for a file that was not written to its end
        sys.exit(f"error: --model {args.model}: {' '.join(str(error).split())}")
    fits(args.model, tokenizer, model)
    tokenizer.chat_template = tokenizer.chat_template or PLAIN
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}]
    tail = tokenizer.apply_chat_template(chat, tokenize=False).rpartition("ANSWER")[2].strip()
    end = tokenizer(tail, add_special_tokens=False)["input_ids"]
    if len(end) == 1 and end != [tokenizer.eos_token_id]:  # an end of turn that is not the end of sequence
        known = model.generation_config.eos_token_id or []
        model.generation_config.eos_token_id = [*(known if isinstance(known, list) else [known]), *end]
    answer = args.max_completion or len(tokenizer(longest)["input_ids"]) * 5 // 4
    most = (args.max_length or getattr(model.config.get_text_config(), "max_position_embeddings", sys.maxsize)) - answer
    asked = [tokenizer.apply_chat_template(r["messages"], add_generation_prompt=True) for r in scorer.rows]
    long = {at for at, prompt in enumerate(asked) if len(prompt["input_ids"]) > most}
    if long and not args.leave_out_long:
        sys.exit(f"error: {len(long)} prompts leave no {answer} tokens for an answer: see --leave-out-long")
    data = Dataset.from_list([{"prompt": row["messages"], "row": at} for at, row in enumerate(scorer.rows)])
    fitting = [at for at in range(len(rows)) if at not in long]
    held_out = data.select([at for at in range(len(rows), len(data)) if at not in long])
    print(f"{len(long)} prompts are too long; {len(fitting)} to train on; answers have up to {answer} tokens")
    kept = {name: value for name, value in vars(args).items() if name not in ELSEWHERE}
    kept["rows"] = hashlib.sha256(" ".join(scorer.rows[at]["example_id"] for at in fitting).encode()).hexdigest()
    before = json.loads((args.out / "grpo.json").read_text()) if last else kept
    if changed := [name for name in kept if kept[name] != before.get(name)]:
        sys.exit(f"error: {args.out} was made with another {', '.join(changed)}: give the same, or another --out")
    steps = args.max_steps or math.ceil(args.epochs * len(fitting) / args.prompts)
    per = -(-args.prompts * args.generations // world // args.eval_generations) * args.eval_generations
    fields: Row = {
        "output_dir": str(args.out), "loss_type": "dr_grpo", "scale_rewards": "none", "beta": args.beta, "bf16": gpu,
        "learning_rate": args.learning_rate or RATES["lora" if args.lora else "full"], "max_steps": steps,
        "lr_scheduler_type": "constant", "seed": args.seed, "report_to": "none", "num_generations": args.generations,
        "num_generations_eval": args.eval_generations, "per_device_eval_batch_size": per,
        "gradient_accumulation_steps": args.prompts * args.generations // (args.micro_batch * world),
        "per_device_train_batch_size": args.micro_batch, "max_completion_length": answer, "dataloader_pin_memory": gpu,
        "save_steps": args.save_steps, "eval_steps": args.save_steps, "save_total_limit": 2, "logging_steps": 1,
        "eval_strategy": "steps" if len(held_out) else "no", "eval_on_start": bool(len(held_out)) and not last,
        "ignore_data_skip": True, "gradient_checkpointing": gpu, "disable_tqdm": not sys.stderr.isatty(),
    }  # fmt: skip
    fields |= {name: json.loads(value) for name, _, value in (given.partition("=") for given in args.set)}
    if fields["loss_type"] not in ("dr_grpo", "grpo"):
        sys.exit("error: --set loss_type: dr_grpo or grpo, whose loss is a mean over completions")
    # TRL would print the whole prompt of each completion without a reward.
    logging.getLogger("trl.trainer.grpo_trainer").addFilter(lambda said: "returned None" not in said.getMessage())
    adapters = LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear") if args.lora else None
    trainer = staged(
        scorer, model=model, args=GRPOConfig(**fields), processing_class=tokenizer, peft_config=adapters,
        train_dataset=data, eval_dataset=held_out if len(held_out) else None,
    )  # fmt: skip
    if gpu and not (fields.get("cache_implementation") or trainer.use_vllm) and model._can_compile_fullgraph:
        most = answer + max(len(prompt["input_ids"]) for at, prompt in enumerate(asked) if at not in long)
        trainer.generation_config.update(cache_implementation="static", max_cache_len=most, disable_compile=False)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in () if last else ("best", "new"):
        shutil.rmtree(args.out / name, ignore_errors=True)  # of a run that ended before its first checkpoint
    write(args.out / "grpo.json", kept)
    if args.screen:
        screened = args.out / "screened.json"
        chosen = json.loads(screened.read_text()) if last else trainer.screen(data.select(fitting), args.screen)
        write(screened, chosen)
        print(f"{len(fitting) - len(chosen)} prompts left out: over {args.screen} completions outcomes did not vary")
        fitting = chosen
    parts = [[at for at in fitting if scorer.rows[at]["mode"] == mode] for mode in MODES]
    if not fitting or (args.construction_share is not None and not all(parts)):
        sys.exit(f"error: {' and '.join(str(len(part)) for part in parts)} prompts are left: too few for this")
    rules = {name: getattr(args, name) for name in ("prompts", "generations", "patience", "rest", "seed")}
    trainer.order = Order(parts, share=args.construction_share, **rules)
    trainer.order.state = json.loads((last / "order.json").read_text()) if last else trainer.order.state
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
