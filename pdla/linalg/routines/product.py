"""The cost of a product with a square matrix, as a part of a composite routine. `matmul` computes the product."""

from __future__ import annotations

from math import ceil

from pdla.linalg.plan import routine
from pdla.linalg.plan.routine import GridShape


class Product(routine.Routine):
    """An m x n matrix times an n x n one."""

    name = "product"
    about = "multiply a random matrix by a square one"

    def multiplications(self, m: int, n: int) -> float:
        return m * n * n

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        pr, pc, *_ = shape
        return m * n / pr * (1 - 1 / pc) + n * n / pc * (1 - 1 / pr)

    def price(self, step: routine.StepCost) -> float:
        (pr, pc, *_), w = step.shape, step.width
        rows, cols = ceil(step.task.m / pr), ceil(step.task.n / pc)
        wire = step.transfer(1, rows * w) + step.transfer(0, cols * w)
        return step.seconds(0.0, 0.0, 0.0, step.gemm(rows, cols, w), wire, 0.0)


PRODUCT = Product()
