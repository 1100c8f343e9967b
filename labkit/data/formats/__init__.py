"""File formats: IDX (MNIST), CIFAR-10's binary format, gzip, and reading selected rows of large files."""
