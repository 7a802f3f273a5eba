"""`python -m consilience.cli`."""

from consilience.cli import main

main()
