"""Reports of a run: its JSON, and the tables and plots that show it.

content  rows to JSON (schema.json), and back           lines  rows of many files, for plots
table    the table of a run                              plots  figures by matplotlib
"""
