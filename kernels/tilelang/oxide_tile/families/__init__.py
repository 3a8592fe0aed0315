"""The kernels, one family a file. A kernel is a function from a variant and a schedule to a `Definition`."""
