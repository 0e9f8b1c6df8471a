"""Products of several matrices: distributed products of two at a time, in the order of fewest multiplications.

opt_einsum finds the order from the shapes; transposes are views. `einsum` also takes chains of
stacks, and a letter that one matrix has twice: its diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, overload

from pdla.array.dtypes import promote
from pdla.checks import communicator, describe_call, matrix, one_of, same_grid
from pdla.comm.agreement import agreed, raise_everywhere, to_text
from pdla.errors import LayoutError, ShapeError, kind_of
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.products.stacks import Stack, batched_matmul
from pdla.matmul import matmul
from pdla.matmul.api import check_algorithm
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast

TAKEN = "it takes a chain of matrix products, such as 'ij,jk,kl->il': two letters an operand, each letter twice in all"
STACKED = "of stacks it takes a chain of products with the same first letter in each, such as 'bij,bjk->bik'"


def multi_dot(matrices: Sequence[DistMatrix], *, layout: Layout | str | None = None, algorithm: str = "auto") -> DistMatrix:
    """Multiply several matrices in the order of fewest multiplications.

    Collective, idle ranks included.

    Parameters
    ----------
    matrices : sequence of DistMatrix
        On one grid, each with as many rows as the one before has columns.
    layout : Layout or "native", optional
        The last product's, as for `matmul`.
    algorithm : str, optional
        As for `matmul`.

    Returns
    -------
    DistMatrix
        A B C ...; for a single matrix a copy.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `matmul`, and for no matrices, on every rank.

    Notes
    -----
    All products have the dtype of all matrices together. The dtype of a pair alone may be narrower,
    and overflow, or not exist.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A, x = pdla.ones((4, 4), grid, layout), pdla.ones((4, 1), grid, layout)
    ...     return pdla.multi_dot([A, A, x]).gather().ravel()
    >>> pdla.run(2, program)[0]
    array([16., 16., 16., 16.])
    """
    chain = _to_list(matrices)
    with agreed(communicator(chain, "matrix 0"), describe_call("multi_dot", *chain, layout=layout, algorithm=algorithm)):
        if isinstance(matrices, DistMatrix):
            raise ShapeError("multi_dot of one matrix: give a sequence of them, as multi_dot([A, B, C])")
        _check_matrices(chain)
        _check(chain)
        dtype = promote(*(X.dtype for X in chain))
        check_algorithm(algorithm)  # also for one matrix alone, which no matmul would check
        if len(chain) == 1 and layout is not None and not one_of(layout, ("native",)):
            checks.check_result(chain[0], chain[0].shape, chain[0].dtype, None, layout)
    if len(chain) == 1:
        return chain[0].redistribute(layout) if isinstance(layout, Layout) else chain[0].copy()
    chain = [cast(X, dtype) for X in chain]
    for step in find_order([chain[0].shape[0], *(X.shape[1] for X in chain)]):
        is_last = len(chain) == 2
        product = matmul(chain[step], chain[step + 1], layout=layout if is_last else None, algorithm=algorithm)
        chain[step : step + 2] = [product]
    return chain[0]


def _to_list(matrices: Any) -> list[DistMatrix]:
    if isinstance(matrices, DistMatrix):
        return [matrices]
    if not (chain := list(matrices) if isinstance(matrices, Iterable) else [matrices]):
        raise_everywhere(ShapeError("multi_dot of no matrices: at least one"))
    return chain


def _check_matrices(matrices: Sequence[Any]) -> None:
    for number, X in enumerate(matrices):
        matrix(X, f"matrix {number}")


def _check(chain: Sequence[DistMatrix]) -> None:
    for number, (X, Y) in enumerate(pairwise(chain)):
        same_grid(chain[0], Y, f"matrix {number + 1}")
        if X.shape[1] != Y.shape[0]:
            raise ShapeError(
                f"matrix {number} is {X.shape[0]} x {X.shape[1]}, matrix {number + 1} {Y.shape[0]} x {Y.shape[1]}: "
                "the inner sizes differ"
            )


def find_order(sizes: Sequence[int]) -> list[int]:
    """Find the order: each step multiplies the matrix with this number in the current list by the next one.

    The matrices are sizes[0] x sizes[1], sizes[1] x sizes[2], ...
    """
    import opt_einsum

    count = len(sizes) - 1
    letters = [opt_einsum.get_symbol(i) for i in range(count + 1)]
    expression = ",".join(map("".join, pairwise(letters))) + f"->{letters[0]}{letters[-1]}"
    path, _ = opt_einsum.contract_path(expression, *pairwise(sizes), shapes=True, optimize="dp")
    first_factors, steps = list(range(count)), []  # the first factor of each matrix in opt_einsum's list; products go to its end
    for pair in path:
        product = min(first_factors[i] for i in pair)
        steps.append(sorted(first_factors).index(product))
        first_factors = [first for i, first in enumerate(first_factors) if i not in pair] + [product]
    return steps


@dataclass(frozen=True)
class Chain:
    """The numbers of the operands in the order of the product, and whether each is transposed there."""

    order: tuple[int, ...]
    transposed: tuple[bool, ...]


@overload
def einsum(subscripts: str, A: DistMatrix, /, *, layout: Layout | str | None = None, algorithm: str = "auto") -> Any: ...
@overload
def einsum(
    subscripts: str, A: DistMatrix, B: DistMatrix, /, *more: DistMatrix, layout: Layout | str | None = None, algorithm: str = "auto"
) -> DistMatrix: ...
@overload
def einsum(subscripts: str, *stacks: Stack, layout: Layout | str | None = None, algorithm: str = "auto") -> Stack: ...
def einsum(
    subscripts: str, *matrices: Any, layout: Layout | str | None = None, algorithm: str = "auto"
) -> Any:
    """Multiply a chain of matrices or of stacks, given in Einstein's notation.

    Collective, idle ranks included.

    Parameters
    ----------
    subscripts : str
        Two letters for each matrix and for the result. Without ``->`` the result has the letters
        that occur once, in alphabetical order. A letter that is in two matrices is summed over; any
        other is in one matrix and the result. The matrices must make one chain, in any order, some
        of them transposed (as views). Stacks have a third letter first, the same in all and in the
        result: "bij,bjk->bik". For one matrix "ii" is the trace, "ii->i" the diagonal.
    *matrices : DistMatrix or Stack
        On one grid.
    layout : Layout or "native", optional
        The result's, as for `matmul`; for stacks the last product's.
    algorithm : str, optional
        As for `matmul`.

    Returns
    -------
    DistMatrix, Stack, number or array
        The product, as by `multi_dot`, in the dtype of all, or by `batched_matmul`. A trace or a
        diagonal is on every rank, as by ``A.trace()`` and ``A.diagonal()``. A may have partial
        sums.

    Raises
    ------
    ShapeError
        For sums that are no such chain: traces and diagonals of products, outer and elementwise
        products, a letter in one operand only.
    LayoutError, GridError, PlanError, AgreementError
        As by `multi_dot`. All of these are raised on every rank.

    Examples
    --------
    A B^T C:

    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [3, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.einsum("ij,kj,kl->il", A, A, A).gather()
    >>> pdla.run(2, program)[0]
    array([[ 38,  54],
           [ 86, 122]])
    """
    if not matrices:
        raise_everywhere(ShapeError(f"einsum({subscripts!r}) without matrices"))
    if isinstance(next((X for X in matrices if isinstance(X, (DistMatrix, Stack))), None), Stack):
        return _multiply_stacks(subscripts, matrices, layout, algorithm)
    with agreed(communicator(matrices, "matrix 0"), describe_call("einsum", subscripts, *matrices)):
        _check_matrices(matrices)
        of_diagonal = None if len(matrices) > 1 else _parse_diagonal(subscripts)
        if of_diagonal is not None:
            checks.check_square("einsum", matrices[0])
            if layout is not None:
                raise LayoutError(f"layout={layout!r}: the result of einsum({subscripts!r}) is whole on every rank")
        else:
            chain = parse(subscripts, len(matrices))
    if of_diagonal is not None:
        (A,) = matrices
        A = A.redistribute(A.layout.summed) if A.layout.partial else A
        return A.diagonal() if of_diagonal else A.trace()
    ordered = [matrices[i].T if t else matrices[i] for i, t in zip(chain.order, chain.transposed, strict=True)]
    return multi_dot(ordered, layout=layout, algorithm=algorithm)


def _split(subscripts: Any) -> tuple[str, str, str]:
    """Split subscripts into the operands' letters, the arrow and the result's letters, without blanks."""
    inputs, arrow, result = str(subscripts).partition("->")
    return inputs.replace(" ", ""), arrow, result.replace(" ", "")


def _parse_diagonal(subscripts: Any) -> str | None:
    """Parse "ii->i" and "ii": return the letters of the result, none for "ii". Return None for other subscripts."""
    inputs, _, result = _split(subscripts)
    return result if len(inputs) == 2 and inputs[0] == inputs[1] and inputs.isalpha() and result in ("", inputs[0]) else None


def _multiply_stacks(subscripts: str, stacks: Sequence[Any], layout: Any, algorithm: str) -> Stack:
    """Collective: multiply a chain of stacks from left to right."""
    comm = communicator(stacks)
    call = "; ".join(S.description if isinstance(S, Stack) else repr(S) for S in stacks)
    with agreed(comm, f"einsum({to_text(subscripts)}; {call}; {layout!r}; {algorithm!r})"):
        for number, S in enumerate(stacks):
            if not isinstance(S, Stack):
                raise ShapeError(f"matrix {number} is {kind_of(S)}, not a Stack, as others are: {STACKED}")
        chain = parse(_drop_batch(subscripts), len(stacks))
        dtype = promote(*(S.dtype for S in stacks))
        check_algorithm(algorithm)
        if layout is not None and len(stacks) == 1:
            raise LayoutError(f"layout={layout!r}: a single stack keeps its layout")
    stacks = [S._cast(dtype) for S in stacks]
    ordered = [stacks[i].T if t else stacks[i] for i, t in zip(chain.order, chain.transposed, strict=True)]
    *others, last = ordered[1:] or [None]
    product = reduce(partial(batched_matmul, algorithm=algorithm), others, ordered[0])
    return product if last is None else batched_matmul(product, last, layout=layout, algorithm=algorithm)


def _drop_batch(subscripts: Any) -> str:
    """Drop the batch's letter from subscripts; ShapeError if stacks are not multiplied matrix by matrix."""
    inputs, arrow, result = _split(subscripts)
    words = [*inputs.split(","), result]
    is_batched = len({word[:1] for word in words}) == 1 and all(len(word) == 3 and word[0] not in word[1:] for word in words)
    if not isinstance(subscripts, str) or not arrow or not is_batched:
        raise ShapeError(f"einsum({subscripts!r}): {STACKED}")
    return f"{','.join(word[1:] for word in words[:-1])}->{result[1:]}"


def parse(subscripts: str, count: int) -> Chain:
    """Parse subscripts of `count` operands to the chain from the result's first letter to its second; or ShapeError."""
    if not isinstance(subscripts, str):
        raise ShapeError(f"einsum({subscripts!r}, ...): the letters come first, as in einsum('ij,jk->ik', A, B)")
    inputs, arrow, result = _split(subscripts)
    operands = inputs.split(",")
    if not arrow:  # in alphabetical order, as in NumPy
        result = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    letters = "".join(operands) + result
    if not all(len(word) == 2 and word.isalpha() for word in (*operands, result)):
        raise ShapeError(f"einsum({subscripts!r}): {TAKEN}, and two in the result")
    if len(operands) != count:
        raise ShapeError(f"einsum({subscripts!r}) names {len(operands)} matrices, {count} are given")
    for letter in letters:
        if letters.count(letter) != 2:
            raise ShapeError(f"einsum({subscripts!r}): {letter!r} occurs {letters.count(letter)} times; {TAKEN}")
    end, remaining, chain = result[0], dict(enumerate(operands)), []
    while (number := next((i for i, word in remaining.items() if end in word), None)) is not None:
        word = remaining.pop(number)
        chain.append((number, word[1] == end))
        end = word.replace(end, "", 1)
    if remaining or end != result[1]:
        raise ShapeError(f"einsum({subscripts!r}): {', '.join(remaining.values()) or result} is not in the chain; {TAKEN}")
    return Chain(*(tuple(column) for column in zip(*chain, strict=True)))
