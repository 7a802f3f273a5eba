"""What every room does with the disk: files written whole or not at all, and folders that one process has to itself."""
