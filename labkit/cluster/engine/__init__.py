"""The programs that run as engines and controllers: ipyparallel's own, with parts replaced."""
