"""`python -m consilience` is the command line."""

from consilience.cli import main

main()
