"""What `python -m bench` runs: functions that show one figure or one table each, by subject."""
