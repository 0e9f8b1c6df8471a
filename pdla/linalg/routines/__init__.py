"""The routines, one after another in block columns: what is asked of one plan/routine.py says, of a factorization factorization.py.

A routine is added by a file and a line below. No other module compares or passes the name of one.
"""

from pdla.linalg.plan.routine import Routine
from pdla.linalg.routines.cholesky import CHOLESKY
from pdla.linalg.routines.factorization import Factorization
from pdla.linalg.routines.lu import LU
from pdla.linalg.routines.qr import QR
from pdla.linalg.routines.triangular import TRIANGULAR
from pdla.linalg.routines.tridiagonal import TRIDIAGONAL

ROUTINES: dict[str, Routine] = {routine.name: routine for routine in (CHOLESKY, LU, QR, TRIANGULAR, TRIDIAGONAL)}
BY_STRUCTURE: dict[str, tuple[Routine, ...]] = {
    "gen": (LU,), "sym": (LU,), "her": (LU,), "pos": (CHOLESKY,), "lower triangular": (TRIANGULAR,),
    "upper triangular": (TRIANGULAR,), "diagonal": (),
}  # what is done first, by what is known of A

__all__ = ["BY_STRUCTURE", "CHOLESKY", "LU", "QR", "ROUTINES", "TRIANGULAR", "TRIDIAGONAL", "Factorization", "Routine"]
