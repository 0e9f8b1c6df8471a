"""The sides of comparisons, pdla's and others': a module each, whose make() returns a Side; their jobs and figures."""
