#!/bin/bash
# A fuzzing campaign on a SLURM cluster: sbatch --array=1-20 slurm.sh
# Each task of the array starts one worker for each of its cores. All share the store, a directory on a file system that every node mounts.
# A task that is ended, or whose node fails, loses the program that it was checking; the others go on with the rest.
#SBATCH --job-name=regional-fuzz
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=fuzz-%A-%a.txt
set -eu
shared=${REGIONAL_SHARED:?the directory that all nodes share}
budget=${REGIONAL_BUDGET:-225m}

# SIGTERM two minutes before the end of the job: the workers finish the programs at hand.
trap 'kill -TERM "$!"; wait "$!"' TERM
pytest-regional fuzz \
    --backend=inductor,reference --mode=native \
    --store="$shared/store" --findings="$shared/findings" \
    --workers="${SLURM_CPUS_PER_TASK:-2}" --budget="$budget" --exit-zero &
wait "$!"
