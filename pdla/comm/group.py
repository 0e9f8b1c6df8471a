"""A group of ranks: their numbers, their nodes, and what a world provides for them.

A world (MPI, threads, dry) is a class that implements the abstract methods. The most important is
`_exchange`, one round of messages; the verbs consist of such rounds (communicator.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from itertools import filterfalse
from operator import itemgetter
from threading import get_ident
from types import ModuleType
from typing import Any, Self, TypeVar

from pdla.comm.collectives import circulant, ring
from pdla.comm.collectives.pipeline import pays
from pdla.comm.collectives.shared_gather import GatherBuffer
from pdla.comm.shared_buffer import SharedBuffer
from pdla.comm.workspace import align
from pdla.errors import AgreementError

Array = Any
Pieces = Sequence[tuple[int, Array]]  # (receiver or sender, array)
Forwards = Mapping[int, Sequence[int]]  # number of a received piece -> the ranks to which it is forwarded: see _exchange
_RANK = itemgetter(0)
OnArrival = Callable[[int], None]  # called with the number of forwarded pieces that have come

Step = TypeVar("Step")

sections: ContextVar[tuple[Any, ...]] = ContextVar("pdla_sections", default=())  # open collective sections (agreement.py)


class Group(ABC):
    """Ranks of one world, and their nodes; a Communicator without its verbs.

    Parameters
    ----------
    rank : int
        This rank's number.
    size : int
        The number of ranks.
    axis : str, optional
        The axis of a grid along which the ranks differ, or another name of the group; "all" for a
        whole world.
    """

    xp: ModuleType  # the array module of this world's matrices
    homes: Sequence[int] = ()  # by rank, the number of its node; empty: all ranks are on one node
    rank: int
    size: int
    axis: str
    tree = False  # whether broadcasts may use the world's own algorithm
    adds = True  # whether a rank can add to a received piece before it forwards it
    publishes = True  # whether ranks wait for counts that others publish; they do not where times are predicted
    shared_limit = 0  # bytes of memory that the ranks of a node may share; 0: ranks send messages instead

    def __init__(self, rank: int, size: int, axis: str = "all") -> None:
        self.rank, self.size, self.axis = rank, size, axis
        self.failed: Callable[[], None] | None = None  # after an error (agreement.py): checks that all ranks failed
        self.user: tuple[int, str] | None = None  # the thread that is in a collective call, and the call in words
        self.clash: str = ""  # the error of every further call, after two threads were in collective calls at once
        self.noted: list[str] = []  # texts for the next agreement to compare (agreement.py)
        self.above: Group | None = None  # the communicator of the grid, if this one is along axes of a grid
        self.ending: list[Callable[[], None]] = []  # collective: `close` calls them, to close what uses this communicator

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, {self.axis!r})"

    def __copy__(self) -> Self:
        return self  # a second handle would count its verbs by itself

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @cached_property
    def nodes(self) -> int:
        """The number of nodes of these ranks."""
        return len(set(self.homes)) or 1

    @property
    def workers(self) -> int:
        """The number of ranks that can work at once, the same on every rank: cores may be shared."""
        return self.size

    @cached_property
    def _others(self) -> list[int]:
        """All ranks except this one."""
        return [*range(self.rank), *range(self.rank + 1, self.size)]

    @cached_property
    def _ahead(self) -> list[int]:
        """By rank: its distance ahead of this one around the ring."""
        return [(rank - self.rank) % self.size for rank in range(self.size)]

    def _order_by_ring(self, pieces: Pieces, forwards: Forwards | None = None) -> list[int]:
        """Order pieces by their ranks around the ring, from this rank on; return their positions in `pieces`.

        Each rank thus starts with a different rank. Pieces to forward come first.
        """
        ahead = [*map(self._ahead.__getitem__, map(_RANK, pieces))]
        order = sorted(range(len(ahead)), key=ahead.__getitem__)
        return [*forwards, *filterfalse(forwards.__contains__, order)] if forwards else order

    @cached_property
    def _circle(self) -> ring.Nodes:
        return ring.Nodes(self.homes)

    @cached_property
    def _route(self) -> ring.Route:
        return self._circle.make_route(self.rank)

    def _goes_around(self, nbytes: int) -> bool:
        """Whether an all-gather of `nbytes` in all goes around the nodes (ring.py)."""
        return ring.pays(nbytes, self.size, self.nodes)

    def _goes_by_pipeline(self, nbytes: int, growth: int) -> bool:
        """Whether a sum of pieces of `nbytes` in all goes from node to node (collectives/pipeline.py).

        growth  the factor by which pieces grow there, as 16-bit floats are widened
        """
        if not (self.adds and self._goes_around(nbytes)):
            return False
        return self._circle.in_order and pays(nbytes, self.nodes, len(self._circle.ranks[0]), growth)

    def goes_stepwise(self, nbytes: int) -> bool:
        """Tell whether pieces are gathered, or summed, step by step (circulant.py), as short ones.

        Parameters
        ----------
        nbytes : int
            The bytes of all pieces.

        Returns
        -------
        bool
            The same on every rank.
        """
        return circulant.pays(nbytes, self.size)

    def _is_far(self, rank: int) -> bool:
        """Whether a rank runs on another node than this one."""
        return self.nodes > 1 and self.homes[rank] != self.homes[self.rank]

    @cached_property
    def _node_ranks(self) -> list[int]:
        """The ranks on this rank's node, including itself."""
        return [rank for rank, home in enumerate(self.homes) if home == self.homes[self.rank]]

    def _count_sharing(self, rank: int, node: int) -> int:
        """Count the ranks, of `node` on a node, that use its links while this one exchanges with `rank`; 0 for one on this node.

        The count assumes that each rank exchanges with the rank equally far ahead, in this group and in others.
        """
        if not self._is_far(rank):
            return 0
        ahead, home = rank - self.rank, self.homes[self.rank]
        sharing = sum(self.homes[(neighbour + ahead) % self.size] != home for neighbour in self._node_ranks)
        return sharing * max(1, node // len(self._node_ranks))

    def check_in_step(self, call: str = "a verb") -> None:
        """Check, before an agreement or a message, that this rank may go on.

        After an error between messages (agreement.py) on this rank, ask whether all ranks failed.
        If that raises, the next call asks again.

        Parameters
        ----------
        call : str, optional
            The call in words.

        Raises
        ------
        GridError
            If the communicator has been freed.
        AgreementError
            If two threads are in calls at once.
        """
        self._check_open()
        comm: Group | None = self
        while comm is not None:
            if comm.clash or (comm.user is not None and comm.user[0] != get_ident()):
                comm.check_one_thread(call)
            if comm.failed is not None:
                self._check_failures()
            comm = comm.above

    def count_meeting(self) -> None:
        """Count a meeting of all ranks in this communicator's open sections, and verbs from 0."""
        for section in sections.get():
            if section.comm is self:
                section.meetings, section.verbs = section.meetings + 1, 0

    def enter(self, call: str) -> tuple[int, str] | None:
        """Start a collective call in this thread.

        Parameters
        ----------
        call : str
            The call in words.

        Returns
        -------
        tuple or None
            The former `user`; the thread restores it at the end of the call.

        Raises
        ------
        AgreementError
            As `check_one_thread` does.
        """
        before = self.user
        if before is not None or self.clash:
            self.check_one_thread(call)
        self.user = get_ident(), call
        return before

    def check_one_thread(self, call: str) -> None:
        """Refuse this call, and any further one, if another thread is in a collective call.

        Ranks would take messages of the one call for messages of the other.

        Parameters
        ----------
        call : str
            The call of this thread, in words.

        Raises
        ------
        AgreementError
            If another thread of this rank is, or was, in a call at the same time.
        """
        user = self.user
        if not self.clash and user is not None and user[0] != get_ident():
            self.clash = (
                f"two threads of rank {self.rank} are in collective calls on {self.axis!r} at once, in {user[1]} and in {call}: "
                "let one thread make them, or give each thread a communicator of its own"
            )
            self._end_waits()
        if self.clash:
            raise AgreementError(self.clash)

    def _end_waits(self) -> None:  # noqa: B027 - a default
        """End the waits of this rank's other threads, as the communicator has a clash."""

    def _check_failures(self) -> None:
        if self.above is not None:
            self.above._check_failures()  # open or not, as this one may outlive it
        if (check := self.failed) is not None:
            self.failed = None
            try:
                check()
            except BaseException:
                self.failed = check
                raise

    # ------------------------------------------------------------------ what a world provides

    def _check_open(self) -> None:  # noqa: B027 - a default
        """Raise GridError if the communicator has been freed, in a world in which it can be."""

    @abstractmethod
    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        """Start a message for each of `sends` and of `recvs`, in order between any two ranks; iterating completes them.

        The iterator yields i when recvs[i] has come. If `forwards` has i, the rank then forwards recvs[i]
        to the ranks forwards[i], in the order of `forwards`. Before each of these sends it calls
        `on_arrival` with the number of forwarded pieces so far, this one included.
        """

    @abstractmethod
    def _exchange_tagged(self, verb: str, tag: int, sends: Pieces, recvs: Pieces) -> Iterator[int]:
        """Start the one message of a send or a recv, matched by its tag, not by the number of the call; see `_exchange`."""

    @abstractmethod
    def _wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, which depends on memory that other ranks write to."""

    @abstractmethod
    def split(self, ranks: Sequence[int] | None, axis: str) -> Self | None:
        """Make the communicator of this rank's group. Collective.

        Parameters
        ----------
        ranks : sequence of int, or None
            The group's ranks in this communicator, in the new order; None if this rank is in no
            group.
        axis : str
            The name of the group.

        Returns
        -------
        Communicator or None
            None for None.
        """

    @abstractmethod
    def share(self, value: Any) -> list[Any]:
        """Share every rank's value with every rank. Collective, blocking.

        Parameters
        ----------
        value : object
            Any small object.

        Returns
        -------
        list
            The values, by rank.

        Raises
        ------
        PdlaError
            For a value that cannot be pickled, over MPI.
        """

    @abstractmethod
    def same(self, text: str) -> bool:
        """Tell whether every rank gave the same text. Collective, blocking.

        Parameters
        ----------
        text : str
            This rank's text.

        Returns
        -------
        bool
            The same on every rank.
        """

    @property
    @abstractmethod
    def identity(self) -> Any:
        """A value that two handles of one communicator have in common on each rank."""

    def shared_buffer(self) -> SharedBuffer | None:
        """Find memory that all ranks write to and read from in turns.

        Returns
        -------
        SharedBuffer or None
            None if the ranks are on several nodes.
        """
        return None

    def common(self, size: int) -> Any:
        """Allocate memory that all ranks see, and that lives as long as an array over it. Collective.

        Parameters
        ----------
        size : int
            Bytes.

        Returns
        -------
        object or None
            None if the ranks are on several nodes, or share no memory.

        Raises
        ------
        PdlaError
            If there is not enough memory, on every rank.
        """
        return None

    @cached_property
    def node_comm(self) -> Self:
        """The communicator of the ranks of this node; collective at its first use."""
        comm = self.split(self._circle.ranks[self._circle.node[self.rank]], self.axis)
        assert comm is not None
        return comm

    def gather_buffer(self, nbytes: int, pieces: int) -> GatherBuffer | None:
        """Allocate memory that the ranks of each node share, for an all-gather. Collective.

        Parameters
        ----------
        nbytes : int
            Bytes to gather.
        pieces : int
            The number of arrays to take from it.

        Returns
        -------
        GatherBuffer or None
            None if shared memory is not faster, or not possible: then each rank needs memory of
            its own.
        """
        if self.nodes in (1, self.size) or not self._goes_around(nbytes):
            return None
        size = nbytes + align(1) * pieces
        most = max(map(len, self._circle.ranks))
        if size * most > self.shared_limit:
            return None
        return GatherBuffer(self.node_comm.shared_buffer(), self.node_comm.size, size)  # type: ignore[arg-type]

    def sample(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Iterate over steps of equal cost, or of cost that falls evenly from each to the next.

        Parameters
        ----------
        steps : sequence
            One value for each step.

        Yields
        ------
        object
            Each step. A dry run yields the one or two middle steps and counts them for all.
        """
        yield from steps

    def close(self) -> None:
        """Free the communicator's resources, and those of all that was made from it. Collective."""
        while self.ending:
            self.ending.pop()()
