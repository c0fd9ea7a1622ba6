"""What models write for the prompts of `dragon eval`: behind an OpenAI-compatible endpoint, or on this machine."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from littledragon.pipelines import llm
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.journal import Journal
from littledragon.pipelines.progress import Counts, busy, say
from littledragon.pipelines.questions import Prompt, Settings, Source, Text, is_number
from littledragon.pipelines.threads import side_by_side
from littledragon.release import published
from littledragon.schemas.ids import digest

Row = dict[str, Any]


Writer = Callable[[Sequence[tuple[str, int]]], Generator[Text, None, None]]
"""Writes these outputs, prompt and number of each, in any order."""


def generated(
    source: Source, prompts: dict[str, Prompt], path: Path, settings: Settings, writer: Writer | None = None
) -> list[Text]:
    """What the model (or another writer) writes; what it wrote for an earlier run of the same is read."""
    run = {"source": source.as_dict()} | settings.deciding(source)
    with Journal(path, {"run": run}) as journal:
        kept: dict[tuple[str, int], Text] = {}
        for row in journal.rows:
            id, number, output, seconds = (row.get(name) for name in ("example_id", "number", "output", "seconds"))
            if not (isinstance(id, str) and type(number) is int and isinstance(output, str) and is_number(seconds)):
                raise UserError(f"{path}: a row that is no output: choose another --out")
            if id in prompts and 0 <= number < settings.samples:
                kept[id, number] = Text(id, number, output, seconds)
        wanted = [(id, n) for n in range(settings.samples) for id in prompts if (id, n) not in kept]
        progress = Counts("generating", len(wanted) + len(kept), {"kept": len(kept)} if kept else {})
        faults: dict[tuple[str, int], Text] = {}
        ask = _asked if source.endpoint else _sampled
        with contextlib.closing(writer(wanted) if writer else ask(source, prompts, wanted, settings)) as generated:
            for text in generated:
                where = (text.example_id, text.number)
                if text.fault is None:
                    line = {"example_id": text.example_id, "number": text.number, "output": text.output}
                    journal.append(line | {"seconds": text.seconds})
                    kept[where] = text
                else:
                    faults[where] = text
                progress.one("written" if text.fault is None else "faults")
        progress.end()
    return [*kept.values(), *faults.values()]


def _asked(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[tuple[str, int]], settings: Settings
) -> Generator[Text, None, None]:
    """The replies of an endpoint, many questions at once. Raises UserError: it takes none of them."""
    assert source.endpoint is not None
    assert source.model is not None
    here = threading.local()

    def ask(what: tuple[str, int]) -> Text:
        id, number = what
        began = time.monotonic()
        try:
            if not hasattr(here, "client"):
                here.client = llm.Client(
                    source.endpoint,
                    source.model or "",
                    settings.rpm,
                    settings.deadline_s,
                    formatted=False,
                    sampling=settings.sampling(source),
                )
            reply = here.client.ask(prompts[id].messages).text
        except llm.LlmError as error:
            if error.kind == "unauthorized":
                raise UserError(f"{source.endpoint}: {error.detail}") from None
            if error.kind not in llm.FINAL or error.detail.startswith("HTTP "):
                return Text(id, number, "", fault=f"no output: {error}")
            reply = ""  # the model refused, or wrote more than it may: its own failure
        return Text(id, number, reply, time.monotonic() - began)

    yield from side_by_side(ask, wanted, settings.threads or 16)


def _sampled(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[tuple[str, int]], settings: Settings
) -> Generator[Text, None, None]:
    """What a local model writes, some prompts at once; the seconds of each are those of its batch.

    Raises:
        UserError: no model lies there, or it has no chat template.
    """
    if not wanted:
        return
    if not Path(source.model or "").is_dir():
        raise UserError(f"--model {source.model}: no folder of a model (or give --endpoint URL too)")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise UserError(f"a local model needs {error.name}: pip install 'littledragon[train]'") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with busy(f"loading {source.model}"):
            tokenizer = AutoTokenizer.from_pretrained(source.model, local_files_only=True, padding_side="left")
            dtype = torch.bfloat16 if device == "cuda" else torch.float32
            model = AutoModelForCausalLM.from_pretrained(source.model, local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"--model {source.model}: {published.short(error)}") from None
    if tokenizer.chat_template is None:
        raise UserError(f"--model {source.model}: its tokenizer has no chat template")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = model.to(device).eval()
    asked, vocabulary, stuck = settings.sampling(source), None, 0
    ends = _ends(model, tokenizer)
    if settings.constrain:
        from littledragon.pipelines.legal_decoding import LegalTokens, vocabulary_of

        vocabulary = vocabulary_of(tokenizer, ends)
    most = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))
    written = {
        id: tokenizer.apply_chat_template(prompts[id].messages, tokenize=False, add_generation_prompt=True)
        for id in {id for id, _ in wanted}
    }
    # Prompts of like length together: padding is work too.
    order = sorted(wanted, key=lambda one: (one[1], len(written[one[0]]), one[0]))
    for first in range(0, len(order), settings.batch):
        batch = order[first : first + settings.batch]
        torch.manual_seed(int(digest([settings.seed, batch]), 16) % (1 << 63))
        inputs = tokenizer(
            [written[id] for id, _ in batch], return_tensors="pt", padding=True, add_special_tokens=False
        ).to(device)
        room = min(asked["max_tokens"], most - inputs["input_ids"].shape[1])
        began = time.monotonic()
        if room > 0:
            sampling = (
                {"do_sample": True, "temperature": asked["temperature"], "top_k": 0, "top_p": 1.0}
                if asked["temperature"] > 0
                else {"do_sample": False}
            )
            masks = [LegalTokens(vocabulary, inputs["input_ids"].shape[1])] if vocabulary is not None else []
            with torch.inference_mode():
                tokens = model.generate(
                    input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=room,
                    eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, logits_processor=masks, **sampling,
                )[:, inputs["input_ids"].shape[1] :]  # fmt: skip
            replies = [_before(row, ends, tokenizer) for row in tokens.tolist()]
            stuck += sum(mask.stuck for mask in masks)
        else:
            replies = [""] * len(batch)  # the prompt leaves no room in the model's context: its own failure
        took = time.monotonic() - began
        for (id, number), reply in zip(batch, replies, strict=True):
            yield Text(id, number, reply, took)
    if stuck:
        say(f"eval: {stuck} of {len(order)} outputs were ended where no token was legal")
    del model
    if device == "cuda":
        torch.cuda.empty_cache()  # the kernels that are judged next need the memory


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the model's, the tokenizer's, and the one that the chat template puts there."""
    own = model.generation_config.eos_token_id
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id}
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}], tokenize=False
    )
    tail = tokenizer(said.rpartition("ANSWER")[2].strip(), add_special_tokens=False)["input_ids"][:1]
    ends |= set(tail) & set(tokenizer.all_special_ids)
    return sorted(end for end in ends if end is not None)


def _before(tokens: list[int], ends: Sequence[int], tokenizer: Any) -> str:
    """The text of what comes before the end."""
    stop = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return str(tokenizer.decode(tokens[:stop], skip_special_tokens=True, clean_up_tokenization_spaces=False))
