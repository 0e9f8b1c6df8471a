import cupy, run_kernel
from unit.test_cupy import *
