#!/bin/sh
#PBS -l select=4:ncpus=64:mpiprocs=2:ompthreads=32
#PBS -l place=scatter:excl
#PBS -l walltime=00:10:00
# qsub -v PROGRAM="python -m pdla.bench" pbs.sh
# mpiprocs: ranks of a node, here its NUMA domains; ompthreads: the cores of each.
cd "$PBS_O_WORKDIR"
export PDLA_THREADS=${OMP_NUM_THREADS:-1}
mpiexec ${PROGRAM:-python -m pdla.bench info}
