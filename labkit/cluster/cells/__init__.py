"""What runs in the kernel while a `%%px` cell runs: the magic, the ranks it waits for, how the cell ends."""
