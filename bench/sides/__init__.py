"""What is compared with pdla, and pdla: a module for each side, whose make() gives a Side; jobs, in which they run; figures."""
