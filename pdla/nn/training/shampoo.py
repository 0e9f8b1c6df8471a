"""Shampoo: the gradient G of an m x n parameter, preconditioned on both sides.

    L += G G^T,  R += G^T G;  value -= rate L^(-1/4) G R^(-1/4)

G has the parameter's layout, L and R are in blocks. Their roots are computed by distributed
products, so a step is collective.
"""

from __future__ import annotations

from typing import Any

from pdla.array.composed import sum_dtype
from pdla.layout import Layout, Shape
from pdla.linalg import inverse_root
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye
from pdla.nn.layer import Layer
from pdla.nn.parameter import Parameter
from pdla.nn.training.optim import Optimizer


class Shampoo(Optimizer):
    """Gradient descent preconditioned on both sides. Collective to make, and to step.

    All numbers may be set between steps, as `optimizer.rate`.

    Parameters
    ----------
    layer : Layer
        The layer whose parameters a step changes.
    rate : float
        The learning rate.
    eps : float, optional
        L and R are eps times the identity before the first step.

    Raises
    ------
    PdlaError
        For an argument that is no number or is out of range, on every rank.
    AgreementError
        If the ranks' arguments differ.

    Notes
    -----
    Gupta, Koren, Singer, arXiv 1802.09568. For each gradient G, L += G G^T, R += G^T G and
    value -= rate L^(-1/4) G R^(-1/4).

    The state of an m x n parameter has m^2 + n^2 numbers. A step takes
    O(m^3 + n^3) operations, those of `pdla.linalg.inverse_root`. A `LinAlgError` of a step, as with
    eps = 0, is raised on every rank and leaves that parameter unchanged.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Linear(scheme, 8, 6)
    ...     optimizer = pdla.nn.Shampoo(layer, 0.1)
    ...     layer.backward(layer.forward(scheme.shard(np.ones((4, 8)))))
    ...     optimizer.step()
    ...     return optimizer.state_dict()["weight.0"].shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    eps: float
    rate: float

    __slots__ = ("eps", "rate")
    numbers = ("rate", "eps")
    moments = 2

    def __init__(self, layer: Layer, rate: float, *, eps: float = 1e-4) -> None:
        super().__init__(layer)
        self.rate, self.eps = rate, eps
        self._agree()

    def _lay_out(self, parameter: Parameter, number: int) -> tuple[Shape, Layout]:
        size = parameter.value.shape[number]
        return (size, size), Layout(*parameter.value.grid.axes[:2])

    def _step(self, parameter: Parameter, value: Any, gradient: Any) -> None:
        own = parameter.value
        G = DistMatrix(gradient.astype(sum_dtype(own.dtype), copy=False), own.shape, own.grid, own.layout)
        L, R = (self._sum(parameter, number, G) for number in (0, 1))
        # L^(-1/4) G R^(-1/4)
        change = matmul(matmul(inverse_root(L, 4), G), inverse_root(R, 4), layout=own.layout)
        self.state[parameter] = L.stored, R.stored
        value[...] -= change.stored * G.dtype.type(self.rate)

    def _sum(self, parameter: Parameter, number: int, G: DistMatrix) -> DistMatrix:
        """Collective: compute L + G G^T (number 0) or R + G^T G (number 1)."""
        shape, layout = self._lay_out(parameter, number)
        if parameter in self.state:
            previous = DistMatrix(self.state[parameter][number], shape, G.grid, layout)
        else:
            previous = eye(shape[0], G.grid, layout, dtype=G.dtype) * self.eps
        return previous + (matmul(G.T, G, layout=layout) if number else matmul(G, G.T, layout=layout))
