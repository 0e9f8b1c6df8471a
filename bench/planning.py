"""How long it takes to plan a product on a million ranks, without and with a memory limit: python -m bench.planning [ranks]

For each shape the seconds of one call of predict_matmul, which no call before has made easier: the search, and the dry runs that
give the plan's figures. Then the plan, and its bytes as a multiple of the lower bound. Of a limit that no plan keeps it is the time
to the error, which says how many bytes are missing.
"""

import time

import pdla
from bench.common.given import started
from pdla.bench.arguments import rank_count
from pdla.errors import PlanError

CUBE = 10**6, 10**6, 10**6
ASKED = (
    (CUBE, None), (CUBE, 10**8), (CUBE, 10**7),
    ((1000, 1000, 1000), None), ((10**7, 10**7, 10), None), ((10**5, 10**6, 10**4), 10**7),
    ((100, 100, 10**9), None), ((3, 1000, 10**9), None), ((10**9, 100, 100), None),
)


def main(ranks=10**6):
    pdla.predict_matmul(8, 8, 8, 8)  # so that nothing is imported or searched for the first time below
    print(f"{ranks} ranks, float64, one core")
    for mnk, limit in ASKED:
        start = time.perf_counter()
        try:
            plan = pdla.predict_matmul(*mnk, ranks, memory_limit=limit)
            over = plan.bytes_received / max(plan.lower_bound, 1)
            words = f"{plan.algorithm} by {plan.schedule} on {' x '.join(map(str, plan.grid))}, {over:.2f} of the bound"
        except PlanError as error:
            words = str(error).partition(";")[0]
        taken = time.perf_counter() - start
        asked = " x ".join(map(str, mnk)) + (f" within {limit} bytes" if limit else "")
        print(f"{taken:6.2f} s  {asked}: {words}")


if __name__ == "__main__":
    started(main, rank_count, __doc__)
