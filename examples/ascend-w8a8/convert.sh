#!/bin/bash
# convert.sh MODEL OUTPUT: the guide's steps 7 to 9. OUTPUT appears only when it is complete.
set -euo pipefail
model=$1 output=$2 partial=$2.partial
here=$(dirname "$0")

python3 "$here/edit.py" before "$model"
# shellcheck source=/dev/null
source /usr/local/Ascend/ascend-toolkit/set_env.sh
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:False
export PYTHONPATH=/opt/msit/msmodelslim:${PYTHONPATH:-}
rm --recursive --force "$partial"
mkdir --mode=750 "$partial"
cd /opt/msit/msmodelslim/example/DeepSeek
python3 quant_deepseek_w8a8.py --model_path "$model" --save_path "$partial" \
    --from_fp8 --dynamic --disable_anti --quant_mtp --cloud_vllm
python3 "$here/edit.py" after "$partial"
mv --no-target-directory "$partial" "$output"
