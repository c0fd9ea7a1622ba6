#!/usr/bin/env bash
# A student from nothing: it learns the language from legal schedules, then from measured ones, then from verdicts, and is
# judged beside the baselines. What ended is not done again, and what was interrupted goes on. Its two releases are made
# without a GPU, and it learns on the GPU that samples/h200 was measured on:
#
#   dragon run --preset gpu --device simulated --config samples/pretrain.yaml --workdir pretrain --executor local
#   cp -r samples/h200 work
#   for s in pairs teach check publish; do dragon $s --preset gpu --config samples/h200.yaml --workdir work --executor local; done
#   LEGAL=pretrain/release MEASURED=work/release OUT=out samples/student.sh
#
# LEGAL is the release to begin on, MEASURED the one with measured latencies. WHAT="legal sft judge-sft" does these parts
# alone, of those that WHAT names below. GRPO is quicker where ANSWER and LONGEST (tokens of an answer, and of it with its
# prompt) leave long ones out. SFT_SET and GRPO_SET are further settings of TRL's for all
# training of a kind, "torch_compile=true weight_decay=0.1" for example; no value may hold a space.
# The script needs littledragon[train,report], which `make setup` brings; where .venv is not active,
# DRAGON=.venv/bin/dragon PYTHON=.venv/bin/python (commands, of one word or more).
#
# A try of all but the curve and stock, in a few minutes and without a GPU, of `dragon run --device simulated --limit 4 --workdir trial`:
#
#   LEGAL=trial/release MEASURED=trial/release OUT=try DEVICE=simulated SPLIT=train SIZE=tiny EPOCHS=1 BATCH=4 MICRO=2 STEPS=1 PROMPTS=2 \
#     GENERATIONS=2 ANSWER=32 MOST=32 SAMPLES=1 LIMIT=1 TOGETHER=4 TASKS=1 TRIALS=4 READ=2,4 OMP_NUM_THREADS=1 \
#     WHAT="legal sft grpo judge-sft judge-grpo alone baselines search report" samples/student.sh
set -euo pipefail
: "${LEGAL:?the release to begin on}" "${MEASURED:?the release with measured latencies}" "${OUT:=student}"
DRAGON=${DRAGON:-dragon} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-real} SPLIT=${SPLIT:-test} SIZE=${SIZE:-small}
LEGAL_EPOCHS=${LEGAL_EPOCHS:-1} EPOCHS=${EPOCHS:-6} BATCH=${BATCH:-64} MICRO=${MICRO:-16} SAVE=${SAVE:-100}
STEPS=${STEPS:-24} PROMPTS=${PROMPTS:-16} GENERATIONS=${GENERATIONS:-8} RATE=${RATE:-1e-5} MOST=${MOST:-2560}
SAMPLES=${SAMPLES:-8} TOGETHER=${TOGETHER:-256} LIMIT=${LIMIT:-40} TEMPERATURE=${TEMPERATURE:-0.7}
TASKS=${TASKS:-24} TRIALS=${TRIALS:-128} READ=${READ:-8,32,128} STOCK=${STOCK:-6}
stock=stock; [[ $DEVICE == real ]] || stock=
WHAT=${WHAT:-legal sft grpo judge-sft judge-grpo alone baselines curve search $stock report}
needs="duckdb, littledragon, trl"; [[ " $WHAT " != *" report "* ]] || needs+=", matplotlib"
$PYTHON -c "import $needs" 2>/dev/null || { echo "error: PYTHON=$PYTHON lacks one of $needs: set it to the Python that has them" >&2; exit 2; }
mkdir -p "$OUT"

step() { # NAME COMMAND…: once, timed
  local name=$1 began; shift
  if [[ -e $OUT/.$name ]]; then
    [[ $(< "$OUT/.$name") == "$*" ]] && return
    echo "error: $OUT: step $name was done with other settings: give these again, or another OUT" >&2; exit 2
  fi
  echo "== $name: $*" | tee -a "$OUT/log.txt"; began=$(date +%s)
  "$@" 2>&1 | tee -a "$OUT/log.txt"
  echo "== $name took $(($(date +%s) - began)) s" | tee -a "$OUT/log.txt"
  echo "$*" > "$OUT/.$name.new"; mv "$OUT/.$name.new" "$OUT/.$name"
}
learn=($DRAGON train sft --batch "$BATCH" --micro-batch "$MICRO" --save-steps "$SAVE" --eval-rows 0 --leave-out-long --resume)
# Little padding, and no waiting: neither for rows nor for a look at each step's loss (one that is no number is logged as that).
feed=('train_sampling_strategy="group_by_length"' dataloader_num_workers=2 logging_nan_inf_filter=false ${SFT_SET:-})
finish=("${learn[@]}" --epochs "$EPOCHS" --learning-rate 3e-4 --set gradient_checkpointing=false "${feed[@]}")
judge=($DRAGON eval --data "$MEASURED" --split "$SPLIT" --device "$DEVICE")
prompts=("${judge[@]}" --limit "$LIMIT" --samples "$SAMPLES")
model=("${prompts[@]}" --batch "$TOGETHER" --max-tokens "$MOST" --temperature "$TEMPERATURE")
best() { if [[ -d $OUT/grpo/best ]]; then echo "$OUT/grpo/best"; else echo "$OUT/grpo"; fi; }
part() { # PARTS OUT: one in so many of the measured workloads
  $PYTHON - "$MEASURED" "$2" "$1" <<'P'
import pathlib, sys
import duckdb
release, share, parts = sys.argv[1:]
for mode in ("construction", "refinement"):
    folder = pathlib.Path(share, mode)
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(map(str, pathlib.Path(release, mode).glob("train-*.parquet")))
    rows = duckdb.read_parquet(files).filter(f"md5_number_lower(workload_id) % {int(parts)} = 0")
    rows.write_parquet(str(folder / "train-0.parquet"))
P
}
rows() { # RELEASE: its training rows
  $PYTHON -c 'import pathlib, sys, pyarrow.parquet as pq
print(sum(pq.read_metadata(path).num_rows for path in pathlib.Path(sys.argv[1]).glob("*/train-*.parquet")))' "$1"
}

for part in $WHAT; do case $part in
legal) step legal "${learn[@]}" --data "$LEGAL" --init "$SIZE" --out "$OUT/legal" --epochs "$LEGAL_EPOCHS" --set "${feed[@]}" ;;
sft) step sft "${finish[@]}" --data "$MEASURED" --model "$OUT/legal" --out "$OUT/sft" ;;
grpo)
  step grpo $DRAGON train grpo --data "$MEASURED" --model "$OUT/sft" --out "$OUT/grpo" --device "$DEVICE" --learning-rate "$RATE" \
    --max-steps "$STEPS" --prompts "$PROMPTS" --generations "$GENERATIONS" --micro-batch "$MICRO" --max-completion "${ANSWER:-$MOST}" \
    ${LONGEST:+--max-length "$LONGEST"} --save-steps $(((STEPS + 1) / 2)) --eval-prompts "$PROMPTS" --eval-generations "$GENERATIONS" \
    --leave-out-long --set gradient_checkpointing=false ${GRPO_SET:-} --resume ;;
judge-sft) step judge-sft "${model[@]}" --model "$OUT/sft" --out "$OUT/sft.jsonl" ;;
judge-grpo) step judge-grpo "${model[@]}" --model "$(best)" --out "$OUT/grpo.jsonl" ;;
alone) # one output at a time: its time to a kernel holds no waiting
  step alone "${judge[@]}" --limit "$LIMIT" --samples 1 --model "$(best)" --batch 1 --threads 1 --max-tokens "$MOST" \
    --temperature "$TEMPERATURE" --out "$OUT/alone.jsonl" ;;
baselines)
  for name in reference default nearest random; do step $name "${prompts[@]}" --baseline $name --out "$OUT/$name.jsonl"; done ;;
curve) # what a quarter of the measured workloads gives, and a half; and what the legal ones alone do
  for parts in 4 2; do
    step part-$parts part $parts "$OUT/part-$parts"
    if (( $(rows "$OUT/part-$parts") == 0 )); then echo "one in $parts of the workloads are none: left out"; continue; fi
    step sft-$parts "${finish[@]}" --data "$OUT/part-$parts" --model "$OUT/legal" --out "$OUT/sft-$parts"
    step judge-sft-$parts "${model[@]}" --model "$OUT/sft-$parts" --out "$OUT/sft-$parts.jsonl"
  done
  step judge-legal "${model[@]}" --model "$OUT/legal" --out "$OUT/legal.jsonl" ;;
search) step search "${judge[@]}" --baseline search --limit "$TASKS" --trials "$TRIALS" --read "$READ" --out "$OUT/search.jsonl" ;;
stock) step stock "${judge[@]}" --baseline stock --limit "$STOCK" --trials 64 --out "$OUT/stock.jsonl" ;;
report) # anew each time, of what there is
  given=()
  for name in legal sft grpo alone reference default nearest random; do
    if [[ -e $OUT/$name.jsonl ]]; then given+=("$name=$OUT/$name.jsonl"); fi; done
  for name in search stock; do if [[ -e $OUT/$name.trials.jsonl ]]; then given+=(--trials "$name=$OUT/$name.trials.jsonl"); fi; done
  for name in sft grpo; do if [[ -e $OUT/$name/trainer_state.json ]]; then given+=(--training "$name=$OUT/$name"); fi; done
  for parts in 4 2; do
    if [[ -e $OUT/sft-$parts.jsonl ]]; then given+=(--curve "$(rows "$OUT/part-$parts")=$OUT/sft-$parts.jsonl"); fi; done
  if [[ -e $OUT/sft-4.jsonl && -e $OUT/sft.jsonl ]]; then given+=(--curve "$(rows "$MEASURED")=$OUT/sft.jsonl"); fi
  $DRAGON eval report --out "$OUT/report.html" "${given[@]}"
  if [[ -e $OUT/alone.jsonl && -e $OUT/search.trials.jsonl ]]; then $DRAGON eval times "$OUT/alone.jsonl" "$OUT"/*.trials.jsonl; fi ;;
*) echo "error: WHAT: $part is none of legal, sft, grpo, judge-sft, judge-grpo, alone, baselines, curve, search, stock, report" >&2; exit 2 ;;
esac; done
