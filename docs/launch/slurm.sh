#!/bin/sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=2      # NUMA domains of a node; its cores for a rank a core; its GPUs for a rank a GPU
#SBATCH --cpus-per-task=32       # the cores of each
##SBATCH --gpus-per-task=1       # with GPUs
#SBATCH --time=00:10:00
# sbatch --export=ALL,PROGRAM="python -m pdla.bench" slurm.sh
# Ranks are bound to their cores, and pdla holds BLAS to those; consecutive ranks fill a node.
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK PDLA_THREADS=$SLURM_CPUS_PER_TASK
srun --cpu-bind=cores --distribution=block:block --cpus-per-task="$SLURM_CPUS_PER_TASK" ${PROGRAM:-python -m pdla.bench info}
