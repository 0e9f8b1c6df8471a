"""Reports of a run: the JSON that it leaves, and what is made of it to look at: tables and plots.

content  rows to JSON (schema.json), and back           lines  rows of many files, ready to be drawn
table    what a run prints                              plots  figures by matplotlib
"""
