#!/usr/bin/env bash
# SmolLM2's board on a CPU, in stages from the most telling to the rest: tools/board_cpu.sh
# Needs lexbench with the extra models, its command on the PATH, and `make texts`. Every command goes on where an earlier one was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1
common="model=smollm2 corpus=manuals backend.dtype=bfloat16 price=false results=runs/smollm2_board"
methods="none yarn rerope ntk self_extend"
passkey="task=passkey +task.questions_per_text=4"
segment="task=last_segment +task.targets=1024 +task.longest=16384"
for method in $methods; do
  lexbench run method=$method $common $passkey 'lengths=[8192,16384]' n=64
done
for method in $methods; do
  lexbench run method=$method $common $segment 'lengths=[8192,16384]' n=16
done
for method in $methods; do
  lexbench run method=$method $common $passkey 'lengths=[2048,4096,8192,16384]' n=64
  lexbench run method=$method $common $segment 'lengths=[2048,4096,8192,16384]' n=32
done
lexbench run method=ntk,pi $common $passkey 'lengths=[2048,4096,8192,16384]' n=64
lexbench run method=ntk,pi $common $segment 'lengths=[2048,4096,8192,16384]' n=32
for task in niah_multikey_1 variable_tracking; do
  lexbench run method=none $common task=$task +task.questions_per_text=4 'lengths=[8192]' n=64
done
lexbench run method=none $common 'task=[distractor_qa,arithmetic,planted_summary]' 'lengths=[8192]' n=32
lexbench run method=none ${common/manuals/stdlib} task=next_line 'lengths=[8192]' n=32
# Prices at T of what is set for 2T; begun in results/reference/smollm2/prices: copy it to runs/smollm2_prices to go on.
prices="${common/smollm2_board/smollm2_prices} baseline=false method.at=16384 backend.batch=1"
for method in yarn ntk self_extend pi; do
  lexbench run method=$method $prices $segment 'lengths=[8192]' n=32
done
for method in yarn ntk self_extend pi; do
  lexbench run method=$method $prices $passkey 'lengths=[8192]' n=64
done
python tools/smollm2_page.py runs/smollm2_board
