#!/bin/bash
# A training job for SLURM: sbatch examples/cluster_job.sh CONFIG [OPTION ...]
# Copy it and change what your cluster asks for. It is queued again when its time is up or a node is lost, and continues
# its own newest checkpoint bit for bit (--ckpt_path auto); a job that is done ends with status 0.
#SBATCH --job-name=clip
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4          # one process for each GPU
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@180            # seconds before the end: time enough to save once
#SBATCH --requeue
#SBATCH --open-mode=append           # one log for all starts of the job
#SBATCH --output=%x-%j.log

export OMP_NUM_THREADS=1
srun --kill-on-bad-exit=1 fcco fit --config "$@" \
    --name "$SLURM_JOB_NAME-$SLURM_JOB_ID" \
    --trainer.num_nodes "$SLURM_JOB_NUM_NODES" \
    --trainer.devices "$SLURM_NTASKS_PER_NODE" \
    --trainer.strategy ModelParallelStrategy \
    --checkpoint.every_n_train_steps 1000 \
    --ckpt_path auto
