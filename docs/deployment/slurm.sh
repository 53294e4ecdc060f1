#!/bin/bash
# A fuzzing campaign on a SLURM cluster: sbatch --array=1-20 slurm.sh
# Each task of the array draws the programs of its own seed, with one process for each of its cores. All share the directory of findings, on a file
# system that every node mounts. The same array job again goes on where this one ended.
#SBATCH --job-name=regional-fuzz
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=fuzz-%A-%a.txt
set -eu
shared=${REGIONAL_SHARED:?the directory that all nodes share}
budget=${REGIONAL_BUDGET:-225m}

# SIGTERM two minutes before the end of the job: the processes finish the current programs.
trap 'kill -TERM "$!"; wait "$!"' TERM
pytest-regional fuzz \
    --backend=inductor,reference --mode=native \
    --seed="${SLURM_ARRAY_TASK_ID:-1}" --findings="$shared/findings" \
    --workers="${SLURM_CPUS_PER_TASK:-2}" --budget="$budget" --exit-zero &
wait "$!"
