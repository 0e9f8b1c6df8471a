"""Dry runs in which all ranks have clocks: who waits for whom.

event          work or a message, with the times at which it begins and ends
clock          a rank's time, by a machine's rates (all_ranks.py)
critical path  the work and messages that lead without a gap from the start of a run to its end (critical_path.py)
"""
