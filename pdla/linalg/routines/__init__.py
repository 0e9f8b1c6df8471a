"""The registry of routines. plan/routine.py defines a routine's interface, factorization.py a factorization's.

To add a routine, write a file, and a line below. No other module compares or passes its name.
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
}  # the first routines, by A's structure

__all__ = ["BY_STRUCTURE", "CHOLESKY", "LU", "QR", "ROUTINES", "TRIANGULAR", "TRIDIAGONAL", "Factorization", "Routine"]
