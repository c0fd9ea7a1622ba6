#!/usr/bin/env bash
# A student from nothing: it learns the language from legal schedules, then from measured ones, then from verdicts, and is
# judged beside the baselines. What ended is not done again. Its releases are made without a GPU:
#
#   dragon run --preset gpu --device simulated --config samples/pretrain.yaml --workdir pretrain --executor local
#   cp -r samples/h200 h200
#   for stage in pairs teach check publish; do dragon $stage --preset gpu --config samples/h200.yaml --workdir h200 --executor local; done
#   make student LEGAL=pretrain/release MEASURED=h200/release             # on the GPU of samples/h200
set -euo pipefail
LEGAL=${LEGAL:?the release to begin on} MEASURED=${MEASURED:?the release with measured latencies} OUT=${OUT:-student}
DRAGON=${DRAGON:-dragon} DEVICE=${DEVICE:-real} SIZE=${SIZE:-small} SPLIT=${SPLIT:-test}
LEGAL_EPOCHS=${LEGAL_EPOCHS:-1} EPOCHS=${EPOCHS:-6} BATCH=${BATCH:-64} MICRO=${MICRO:-16}
STEPS=${STEPS:-24} PROMPTS=${PROMPTS:-16} GENERATIONS=${GENERATIONS:-8} MOST=${MOST:-2560}
SAMPLES=${SAMPLES:-8} TOGETHER=${TOGETHER:-256} LIMIT=${LIMIT:-40} TRIALS=${TRIALS:-128} TASKS=${TASKS:-24} STOCK=${STOCK:-6}
# What is done, in this order: learn, judge, baselines, curve, search, stock, report.
WHAT=${WHAT:-learn judge baselines curve search stock report}
mkdir -p "$OUT"; log=$OUT/log.txt

step() { # NAME COMMAND…: once, timed
  local name=$1 began; shift
  [[ -e $OUT/.$name ]] && return
  echo "== $name: $*" | tee -a "$log"; began=$(date +%s)
  "$@" 2>&1 | tee -a "$log"
  echo "== $name took $(($(date +%s) - began)) s" | tee -a "$log"; touch "$OUT/.$name"
}
learn() { $DRAGON train sft --batch "$BATCH" --micro-batch "$MICRO" --save-steps 100000 --eval-rows 0 --leave-out-long "$@"; }
judge() { $DRAGON eval --data "$MEASURED" --split "$SPLIT" --device "$DEVICE" --limit "$LIMIT" --samples "$SAMPLES" "$@"; }
model() { judge --model "$1" --batch "$TOGETHER" --max-tokens "$MOST" --out "$2"; }

for part in $WHAT; do case $part in
learn)
  step legal learn --data "$LEGAL" --init "$SIZE" --out "$OUT/legal" --epochs "$LEGAL_EPOCHS"
  step sft learn --data "$MEASURED" --model "$OUT/legal" --out "$OUT/sft" --epochs "$EPOCHS" --learning-rate 3e-4 \
    --set gradient_checkpointing=false
  step grpo $DRAGON train grpo --data "$MEASURED" --model "$OUT/sft" --out "$OUT/grpo" --device "$DEVICE" --learning-rate 1e-5 \
    --max-steps "$STEPS" --prompts "$PROMPTS" --generations "$GENERATIONS" --micro-batch "$MICRO" --max-completion "$MOST" \
    --save-steps $((STEPS / 2)) --eval-prompts 16 --leave-out-long --set gradient_checkpointing=false ;;
judge)
  step judge-sft model "$OUT/sft" "$OUT/sft.jsonl"
  step judge-grpo model "$OUT/grpo/best" "$OUT/grpo.jsonl"
  step alone-grpo judge --model "$OUT/grpo/best" --batch 1 --threads 1 --samples 1 --max-tokens "$MOST" --out "$OUT/alone.jsonl" ;;
baselines)
  for name in reference default nearest random; do step "$name" judge --baseline "$name" --out "$OUT/$name.jsonl"; done ;;
curve) # what a quarter of the measured workloads gives, and a half
  for parts in 4 2; do
    share=$OUT/share-$parts; mkdir -p "$share"
    step "share-$parts" python3 - "$MEASURED" "$share" "$parts" <<'P'
import sys, pathlib, duckdb
release, share, parts = sys.argv[1:]
for mode in ("construction", "refinement"):
    pathlib.Path(share, mode).mkdir(exist_ok=True)
    duckdb.sql(f"""COPY (FROM '{release}/{mode}/train-*.parquet' WHERE md5_number_lower(workload_id) % {parts} = 0)
                   TO '{share}/{mode}/train-0.parquet'""")
P
    step "sft-$parts" learn --data "$share" --model "$OUT/legal" --out "$OUT/sft-$parts" --epochs "$EPOCHS" \
      --learning-rate 3e-4 --set gradient_checkpointing=false
    step "judge-$parts" model "$OUT/sft-$parts" "$OUT/sft-$parts.jsonl"
  done
  step judge-legal model "$OUT/legal" "$OUT/legal.jsonl" ;;
search) step search judge --baseline search --limit "$TASKS" --trials "$TRIALS" --read "8,32,$TRIALS" --out "$OUT/search.jsonl" ;;
stock) step stock judge --baseline stock --limit "$STOCK" --trials 64 --out "$OUT/stock.jsonl" ;;
report)
  files=()
  for name in sft grpo legal reference default nearest random; do [[ -e $OUT/$name.jsonl ]] && files+=("$name=$OUT/$name.jsonl"); done
  for found in "$OUT"/*.trials.jsonl; do
    [[ -e $found ]] && name=$(basename "$found" .trials.jsonl) && files+=(--trials "$name=$found"); done
  for parts in 4 2; do [[ -e $OUT/sft-$parts.jsonl ]] && files+=(--curve "$(python3 - "$OUT/share-$parts" <<'P'
import sys, duckdb
print(duckdb.sql(f"select count(*) from '{sys.argv[1]}/*/train-*.parquet'").fetchone()[0])
P
)=$OUT/sft-$parts.jsonl"); done
  step report $DRAGON eval report --out "$OUT/report.html" "${files[@]}" --training "SFT=$OUT/sft" --training "GRPO=$OUT/grpo" ;;
esac; done
