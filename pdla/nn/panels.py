"""A linear's three products by SUMMA, panel by panel, so that no matrix is gathered whole.

Each axis carries the same dimension as in `linear.py`, which gathers whole matrices. The same
number of words travels in more messages.
"""

from __future__ import annotations

from typing import Any

from pdla import config
from pdla.comm.workspace import Workspace
from pdla.layout import Layout, effective
from pdla.matmul import builder, verify
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import Plan
from pdla.matmul.roles import Roles
from pdla.matrix.core import DistMatrix
from pdla.nn.scheme import LinearLayouts, Scheme

PLANS = 12  # the most plans kept for a weight; each number of tokens has three


class Panels:
    """The products of one weight, each planned when it is first computed."""

    scheme: Scheme
    width: int

    def __init__(self, scheme: Scheme, width: int) -> None:
        self.scheme, self.width = scheme, width
        self.plans: dict[tuple[Any, ...], Plan] = {}

    def __deepcopy__(self, memo: object) -> Panels:
        return Panels(self.scheme, self.width)  # without plans, which may hold memory that ranks share

    def compute_y(self, x: DistMatrix, w: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Collective: compute X W."""
        return self._multiply(x, w, layouts.Y, (layouts.x, layouts.w, layouts.y))

    def compute_dx(self, dy: DistMatrix, w: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Collective: compute dY W^T."""
        return self._multiply(dy, w.T, layouts.X, (layouts.dy, layouts.w.T, layouts.dx))

    def compute_dw(self, x: DistMatrix, dy: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Collective: compute X^T dY."""
        return self._multiply(x.T, dy, layouts.W, (layouts.x.T, layouts.dy, layouts.dw))

    def _multiply(self, A: DistMatrix, B: DistMatrix, layout: Layout, layouts: tuple[Layout, Layout, Layout]) -> DistMatrix:
        key = A.shape, B.shape, A.layout, B.layout
        if key not in self.plans:
            C = Operand((A.shape[0], B.shape[1]), layout, A.grid)
            roles = self._find_roles(*layouts)
            self.plans[key] = builder.plan_in_panels(Operand.of(A), Operand.of(B), C, A.dtype, roles, self.width)
            while len(self.plans) > PLANS:
                del self.plans[next(iter(self.plans))]
        run = verify.run if config.settings.verify else Plan.run
        return run(self.plans[key], A, B, None, 1, 0, Workspace())

    def _find_roles(self, *layouts: Layout) -> Roles:
        """Find the roles of axes from the gathered layouts of A and B and that of C's addends."""
        sizes = self.scheme.grid.sizes
        a, b, c = (
            Layout(effective(X.rows, sizes), effective(X.cols, sizes), [axis for axis in X.partial if sizes[axis] > 1])
            for X in layouts
        )
        carried = [*((cut.axis, "m") for cut in c.rows), *((cut.axis, "n") for cut in c.cols), *((axis, "k") for axis in c.partial)]
        return Roles(tuple(carried), a, b, c)
