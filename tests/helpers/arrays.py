"""The dtypes and sizes on which namespaces of arrays are tested."""

DTYPES = ["float64", "float32", "complex64", "complex128", "float16", "int8", "int64", "longdouble", ">f8"]
SIZES = [(4, 5, 3), (1, 1, 1), (1, 6, 4), (6, 1, 4), (5, 3, 1), (7, 8, 9)]
