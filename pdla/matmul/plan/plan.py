"""The plan that users get: a description of a product that can be run, predicted and explained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pdla import checks, config
from pdla.comm.agreement import mark_failed
from pdla.comm.workspace import Workspace
from pdla.matmul import verify
from pdla.matmul.plan import costs, explanation, running
from pdla.matmul.plan.description import Description
from pdla.matrix.core import DistMatrix
from pdla.model.cost import Cost


@dataclass(frozen=True, repr=False)
class Plan(Description):
    """How C = alpha A B + beta C is computed; `plan_matmul` makes it, ``plan(A, B)`` runs it.

    Its buffers are kept from run to run; `free` frees them.

    Parameters
    ----------
    A, B, C : Operand
        The product: shapes, layouts, grids, dtypes.
    dtype : numpy.dtype
        Of the product.
    algorithm : str
        The chosen algorithm.
    schedule : str
        The schedule by which its panels move.
    grid : ProcessGrid
        The grid of the product.
    native : tuple of three Layout
        The layouts on `grid` in which A and B are multiplied, and C is computed.
    stays : tuple of three bool
        Whether A, B and C have these layouts already.
    roles : Roles
        The dimension that each axis of `grid` carries.
    walk : Walk
        The dimension along which panels pass.
    panel : int
        Width of panels, in indices.
    machine : Machine
        The machine for which the plan was chosen.
    words : float
        Words that a rank receives for the product.
    moved : float
        Words for the conversions of layouts.
    bound : float
        Words that some rank must receive.
    adds : bool
        Whether the plan is for a beta other than 0. A product in another layout than C's then needs
        memory before it is added.
    limit : float
        Bytes of workspace, or infinity.
    rivals : callable, optional
        Finds the next cheapest ways, in words.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((8, 8), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     return pdla.plan_matmul(A, A, algorithm="summa")
    >>> pdla.run(4, program)[0]
    Plan(C(8, 8) = A(8, 8) B(8, 8), float64, on ProcessGrid(row=2, col=2), summa)
    """

    def __call__(
        self, A: DistMatrix, B: DistMatrix, *, out: DistMatrix | None = None, alpha: complex = 1, beta: complex = 0
    ) -> DistMatrix:
        """Multiply. Collective; matrices are checked without a message.

        Parameters
        ----------
        A, B : DistMatrix
            Like those that the plan was made for.
        out : DistMatrix, optional
            The matrix C to fill.
        alpha : number, optional
            Factor of the product.
        beta : number, optional
            Factor of what `out` holds.

        Returns
        -------
        DistMatrix
            C; `out` itself, where it is given.

        Raises
        ------
        PlanError
            For matrices that the plan was not made for, on this rank alone.
        ShapeError, LayoutError
            For an `out`, alpha or beta that does not fit them, on this rank alone.
        GridError
            If one of their grids or the plan's is closed, or they are on another communicator, on
            this rank alone.
        """
        try:
            running.check(self, A, B, out)
            checks.open_grids((self.grid, A.grid, B.grid, (A if out is None else out).grid))
            checks.scalars(self.dtype, alpha, beta, out)
        except BaseException as error:
            mark_failed(self.grid.comm, "a plan's call", error)
            raise
        return (verify.run if config.settings.verify else Plan.run)(self, A, B, out, alpha, beta, self.state.workspace)

    def run(
        self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, workspace: Workspace
    ) -> DistMatrix:
        """Multiply without checks, with buffers from a workspace. Collective.

        Parameters
        ----------
        A, B : DistMatrix
            Like those that the plan was made for.
        out : DistMatrix or None
            The matrix C to fill.
        alpha, beta : number
            Factors of the product and of what `out` holds.
        workspace : Workspace
            The source of buffers.

        Returns
        -------
        DistMatrix
            C; `out` itself, where it is given.
        """
        return running.run(self, A, B, out, alpha, beta, workspace)

    def free(self) -> None:
        """Free the buffers kept for the next run; the plan still runs. Not collective."""
        self.state.workspace.trim(0)

    @cached_property
    def predicted(self) -> Cost:
        """The cost of a run: the largest figures of some ranks, from dry runs of the plan.

        Bytes, messages and workspace are those of this communicator's ranks. Seconds are by the
        clocks of ranks of the plan's machine, on its nodes.
        """
        return costs.predict(self, self.machine_cost)

    @cached_property
    def machine_cost(self) -> Cost:
        """The cost of a run by the ranks of the plan's machine: fewer dry runs than `predicted`."""
        return costs.find_cost(self)

    def peak_of(self, rank: int) -> int:
        """Predict the workspace of one rank.

        Parameters
        ----------
        rank : int
            A rank of the grid's communicator.

        Returns
        -------
        int
            Bytes.
        """
        return costs.count(self, rank)[2]

    @cached_property
    def peak(self) -> int:
        """The most bytes of workspace that any of the sampled ranks needs."""
        return costs.find_peak(self)

    @cached_property
    def runners_up(self) -> tuple[str, ...]:
        """The next cheapest ways, in words; found at the first request."""
        return self.rivals()

    def explain(self) -> str:
        """Describe the plan: how it multiplies, what it costs, the bound, and the next best ways.

        Returns
        -------
        str
            A few lines.
        """
        return explanation.explain(self, self.predicted, self.runners_up)

    def _repr_html_(self) -> str:
        from pdla.matmul.plan.picture import draw

        return draw(self)
