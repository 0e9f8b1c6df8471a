#!/bin/sh
# mpirun.sh core|numa program...: a rank a core, or a rank a NUMA domain with the domain's cores for BLAS, on this machine.
set -eu
cores=$(getconf _NPROCESSORS_ONLN)
domains=$(ls -d /sys/devices/system/node/node[0-9]* 2>/dev/null | wc -l)
[ "$domains" -gt 0 ] || domains=1
case "${2:+$1}" in
core) ranks=$cores; threads=1; bind="core" ;;
numa) ranks=$domains; threads=$((cores / domains)); bind="numa" ;;
*) echo "$0 core|numa program..." >&2; exit 2 ;;
esac
shift
case "$(mpirun --version 2>&1)" in
*"Open MPI"*) set -- mpirun -n "$ranks" --bind-to "$bind" "$@" ;;
*) set -- mpirun -n "$ranks" -bind-to "$bind" "$@" ;;  # MPICH, Intel MPI
esac
OMP_NUM_THREADS=$threads PDLA_THREADS=$threads exec "$@"
