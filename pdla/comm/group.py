"""A group of ranks: who they are, on which nodes they run, and what a world provides for them.

A world (MPI, threads, dry) is a class that fills in the abstract methods. The most important is
`_exchange`, one round of messages, of which the verbs are made (communicator.py).
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
Pieces = Sequence[tuple[int, Array]]  # (the rank that it is sent to or comes from, the array)
Forwards = Mapping[int, Sequence[int]]  # number of a received piece -> the ranks that it is sent on to: see _exchange
_RANK = itemgetter(0)
OnArrival = Callable[[int], None]  # called with how many of those pieces have come

Step = TypeVar("Step")

sections: ContextVar[tuple[Any, ...]] = ContextVar("pdla_sections", default=())  # collective ones (agreement.py) that are open here


class Group(ABC):
    """Ranks of one world, and which of them share a node; a Communicator without its verbs.

    Parameters
    ----------
    rank : int
        This rank's number.
    size : int
        How many ranks there are.
    axis : str, optional
        The axis of a grid along which the ranks differ, or another name of the group; "all" for a
        whole world.
    """

    xp: ModuleType  # the array module this world's matrices are made of
    homes: Sequence[int] = ()  # by rank, the number of the node that it runs on; empty: all ranks run on one
    rank: int
    size: int
    axis: str
    tree = False  # whether broadcasts may go the world's own way
    adds = True  # whether a rank can add to a piece that has come before it is sent on
    publishes = True  # whether waiting for what others publish takes its time; not where times are predicted
    shared_limit = 0  # bytes of memory that the ranks of a node may share; 0: messages are used instead

    def __init__(self, rank: int, size: int, axis: str = "all") -> None:
        self.rank, self.size, self.axis = rank, size, axis
        self.failed: Callable[[], None] | None = None  # after an error amid messages (agreement.py): asks whether all ranks failed
        self.user: tuple[int, str] | None = None  # the thread that is in a collective call, and the call in words
        self.clash: str = ""  # what to say at every further call, since two threads were in collective calls at once
        self.noted: list[str] = []  # what this rank has done since the last agreement, and the others should have (agreement.py)
        self.above: Group | None = None  # the communicator of the grid along whose axes this one lies
        self.ending: list[Callable[[], None]] = []  # collective: called by `close`, to close what was made from this communicator

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, {self.axis!r})"

    def __copy__(self) -> Self:
        return self  # a second handle would number its verbs by itself

    def __deepcopy__(self, memo: object) -> Self:
        return self

    @cached_property
    def nodes(self) -> int:
        """How many nodes the ranks run on."""
        return len(set(self.homes)) or 1

    @property
    def workers(self) -> int:
        """How many ranks can work at once, as every rank says: fewer where some share a core."""
        return self.size

    @cached_property
    def _others(self) -> list[int]:
        """The ranks but this one."""
        return [*range(self.rank), *range(self.rank + 1, self.size)]

    @cached_property
    def _ahead(self) -> list[int]:
        """By rank: how far it is ahead of this one around the ring."""
        return [(rank - self.rank) % self.size for rank in range(self.size)]

    def _order_by_ring(self, pieces: Pieces, forwards: Forwards | None = None) -> list[int]:
        """The numbers of these pieces by their ranks around the ring, from this one on, so that not all ranks begin with rank 0.

        Those to be sent on come first.
        """
        ahead = [*map(self._ahead.__getitem__, map(_RANK, pieces))]
        turns = sorted(range(len(ahead)), key=ahead.__getitem__)
        return [*forwards, *filterfalse(forwards.__contains__, turns)] if forwards else turns

    @cached_property
    def _circle(self) -> ring.Nodes:
        return ring.Nodes(self.homes)

    @cached_property
    def _route(self) -> ring.Route:
        return self._circle.route(self.rank)

    def _goes_around(self, nbytes: int) -> bool:
        """Whether pieces of `nbytes` in all are gathered around the nodes (ring.py)."""
        return ring.pays(nbytes, self.size, self.nodes)

    def _goes_by_pipeline(self, nbytes: int, growth: int) -> bool:
        """Whether a sum of pieces of `nbytes` in all goes from node to node (collectives/pipeline.py).

        growth  so many times as many bytes a piece has there, as 16-bit floats are widened
        """
        if not (self.adds and self._goes_around(nbytes)):
            return False
        return self._circle.in_order and pays(nbytes, self.nodes, len(self._circle.ranks[0]), growth)

    def stepwise(self, nbytes: int) -> bool:
        """Tell whether short pieces are gathered, or summed, step by step (circulant.py).

        Parameters
        ----------
        nbytes : int
            Of all pieces.

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
    def _beside(self) -> list[int]:
        """The ranks on this rank's node, itself among them."""
        return [rank for rank, home in enumerate(self.homes) if home == self.homes[self.rank]]

    def _count_sharing(self, rank: int, node: int) -> int:
        """How many of a node's `node` ranks use its links while this one exchanges with `rank`; 0: it is on this node.

        Each rank of the group is taken to exchange with the one as far ahead of it, and other groups to do alike.
        """
        if not self._is_far(rank):
            return 0
        ahead, here = rank - self.rank, self.homes[self.rank]
        abroad = sum(self.homes[(each + ahead) % self.size] != here for each in self._beside)
        return abroad * max(1, node // len(self._beside))

    def check_in_step(self, call: str = "a verb") -> None:
        """Check, before an agreement or a message, that this rank may go on.

        If it has gone on after an error amid messages (agreement.py), ask whether all ranks have;
        if that raises, the next call asks again.

        Parameters
        ----------
        call : str, optional
            What is about to happen, in words.

        Raises
        ------
        GridError
            Where the communicator has been freed.
        AgreementError
            Where two threads are in calls at once.
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
        """Count verbs of open sections from here on, as all ranks of this communicator come here."""
        for section in sections.get():
            if section.comm is self:
                section.meetings, section.verbs = section.meetings + 1, 0

    def enter(self, call: str) -> tuple[int, str] | None:
        """Begin a collective call in this thread.

        Parameters
        ----------
        call : str
            The call in words.

        Returns
        -------
        tuple or None
            What the thread puts back into `user` at the end of the call.

        Raises
        ------
        AgreementError
            As `alone` does.
        """
        before = self.user
        if before is not None or self.clash:
            self.check_one_thread(call)
        self.user = get_ident(), call
        return before

    def check_one_thread(self, call: str) -> None:
        """Refuse this call, and any further one, if another thread is in a collective call.

        Ranks would mistake messages of the one for those of the other.

        Parameters
        ----------
        call : str
            This thread's call in words.

        Raises
        ------
        AgreementError
            Where another thread of this rank is, or was, in one at once.
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
        """The communicator has a clash: end what another thread of this rank waits in."""

    def _check_failures(self) -> None:
        if self.above is not None:
            self.above._check_failures()  # open or not, as this one may outlive it
        if (asks := self.failed) is not None:
            self.failed = None
            try:
                asks()
            except BaseException:
                self.failed = asks
                raise

    # ------------------------------------------------------------------ what a world provides

    def _check_open(self) -> None:  # noqa: B027 - a default
        """GridError where the communicator has been freed, in a world in which it can be."""

    @abstractmethod
    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        """Start a message for each of `sends` and of `recvs`, in order between any two ranks; iterating completes them.

        The iterator yields i when recvs[i] is there. If `forwards` has i, recvs[i] is then sent on to
        the ranks forwards[i], once all pieces that come before it in `forwards` have been. Before that,
        `on_arrival` is called with the number of pieces of `forwards` that have come so far, this one
        included.
        """

    @abstractmethod
    def _exchange_tagged(self, verb: str, tag: int, sends: Pieces, recvs: Pieces) -> Iterator[int]:
        """As `_exchange`, for the one message of a send or a recv, which is matched by its tag, not by the number of the call."""

    @abstractmethod
    def _wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, which depends on memory that other ranks write to."""

    @abstractmethod
    def split(self, ranks: Sequence[int] | None, axis: str) -> Self | None:
        """Give the communicator of this rank's group. Collective.

        Parameters
        ----------
        ranks : sequence of int, or None
            The group's ranks in this communicator, in the new order; None: this rank is in no
            group.
        axis : str
            What to call the group.

        Returns
        -------
        Communicator or None
            None for None.
        """

    @abstractmethod
    def share(self, value: Any) -> list[Any]:
        """Give every rank's value to every rank. Collective, blocking.

        Parameters
        ----------
        value : object
            Any small one.

        Returns
        -------
        list
            The values, by rank.

        Raises
        ------
        PdlaError
            For one that cannot be pickled, over MPI.
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
        """A value that is equal for two handles of one communicator on the same rank."""

    def shared_buffer(self) -> SharedBuffer | None:
        """Give memory that all ranks write to and read from in turns.

        Returns
        -------
        SharedBuffer or None
            None where they do not run on one node.
        """
        return None

    def common(self, size: int) -> Any:
        """Make memory that all ranks see, and that lives as long as an array over it. Collective.

        Parameters
        ----------
        size : int
            Bytes.

        Returns
        -------
        object or None
            None where the ranks do not run on one node, or share no memory.

        Raises
        ------
        PdlaError
            Where there is not enough memory, on every rank.
        """
        return None

    @cached_property
    def near(self) -> Self:
        """The communicator of the ranks of this node; collective when it is first asked for."""
        made = self.split(self._circle.ranks[self._circle.node[self.rank]], self.axis)
        assert made is not None
        return made

    def gather_buffer(self, nbytes: int, pieces: int) -> GatherBuffer | None:
        """Make memory that the ranks of each node share, for an all-gather. Collective.

        Parameters
        ----------
        nbytes : int
            Bytes to be gathered.
        pieces : int
            How many arrays will be taken from it.

        Returns
        -------
        GatherBuffer or None
            None where that does not pay or is not possible: then each rank needs memory of its own.
        """
        if self.nodes in (1, self.size) or not self._goes_around(nbytes):
            return None
        size = nbytes + align(1) * pieces
        most = max(map(len, self._circle.ranks))
        return GatherBuffer(self.near.shared_buffer(), self.near.size, size) if size * most <= self.shared_limit else None  # type: ignore[arg-type]

    def sample(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Give some steps that cost alike, or a little less from each to the next, one after another.

        Parameters
        ----------
        steps : sequence
            What each is known by.

        Yields
        ------
        object
            Each step. In a dry run the one or two in the middle, which are counted for all.
        """
        yield from steps

    def close(self) -> None:
        """Free what the world holds for this communicator and what was made from it. Collective."""
        while self.ending:
            self.ending.pop()()
